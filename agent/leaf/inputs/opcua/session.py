"""Runs one OPC UA session on asyncua, with a subscription that outlives it and acknowledgement after storage.

A server keeps unacknowledged notifications and idle subscriptions (OPC 10000-4, 5.14.1), so a returning agent
transfers the subscription and gets them again.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from asyncua import ua
from asyncua.client.client import Client
from asyncua.crypto import security_policies
from asyncua.crypto.uacrypto import CertProperties
from asyncua.ua.attribute_ids import AttributeIds
from asyncua.ua.object_ids import ObjectIds
from asyncua.ua.status_codes import StatusCodes
from asyncua.ua.uaerrors import UaError, UaStatusCodeError
from cryptography import x509
from msgspec import Struct, field, structs

from agent.base.wait import timeout
from agent.config.keys import SeedError, read_password
from agent.leaf.inputs.opcua import OpcuaOptions, Position, decoding
from agent.leaf.inputs.opcua.events import event_filter
from agent.leaf.inputs.opcua.limits import CallLimit, CallLimits, MessageLimits, OpcuaError, bounded
from agent.leaf.inputs.opcua.notifications import FollowedNode

ANSWER_SECONDS: Final = 10.0
"""Timeout of a request."""
_CLOSE_SECONDS: Final = 2.0
"""Wait at stop for a silent server, twice."""
_SESSION_SECONDS: Final = 60.0
"""Time until a server drops a killed agent's session; many servers have few."""
_LEAST_ALIVE, _MOST_ALIVE = 2.0, 10.0
_ALIVE_INTERVALS: Final = 40
"""Publishing intervals between signs of life, within these limits in seconds."""
_VALUES: Final = 500
"""Most values per notification."""
_BROWSED, _ITEMS, _READ, _HISTORIES = 100, 500, 500, 10
"""Most nodes per request to browse, subscribe, and read attributes or history of."""
_BROWSE_BYTES, _ITEM_BYTES = 64, 96
"""Bytes of a request item beside its node id."""
_STATED: Final = (
    ObjectIds.Server_ServerCapabilities_OperationLimits_MaxNodesPerBrowse,
    ObjectIds.Server_ServerCapabilities_OperationLimits_MaxMonitoredItemsPerCall,
    ObjectIds.Server_ServerCapabilities_OperationLimits_MaxNodesPerRead,
    ObjectIds.Server_ServerCapabilities_OperationLimits_MaxNodesPerHistoryReadData,
)
_MIN_TIME, _MAX_TIME = (datetime(year, 1, 1, tzinfo=UTC).timestamp() for year in (1602, 9999))

_FAULTS: Final = (UaError, OSError, TimeoutError, ConnectionError)
for _noisy in ("asyncua", "asyncuacrypto"):
    # What matters is raised; the library also logs each lost connection with a traceback.
    logging.getLogger(_noisy).setLevel(logging.CRITICAL)
decoding.bound()


def call_limits() -> CallLimits:
    """Return the limits for an unknown server."""
    return CallLimits(*map(CallLimit, (_BROWSED, _ITEMS, _READ, _HISTORIES)))


class Subscription(Struct):
    """A subscription of this session."""

    id: int
    sequence: int
    """Number of the last notification stored in part."""
    waiting: list[int] = field(default_factory=list)
    """Unacknowledged notifications from an earlier session."""
    refused: Sequence[tuple[FollowedNode, str]] = ()
    """Variables refused by the server, and why."""


@contextlib.asynccontextmanager
async def connected(options: OpcuaOptions, domain: str, limits: CallLimits) -> AsyncIterator[OpcuaSession]:
    """Yield a session; its subscription stays at the server. `limits` has known limits.
    Raises `OpcuaError`.
    """
    client = Client(options.url, timeout=ANSWER_SECONDS, watchdog_intervall=_alive_seconds(options))
    client.name = client.description = f"petiole {domain}"
    client.session_timeout = int(_SESSION_SECONDS * 1000)
    # The library acknowledges by itself and hides what it could not read; `OpcuaSession` publishes.
    client.uaclient.session.ensure_publish_loop = lambda: None  # type: ignore[method-assign]
    messages = bounded(client)
    try:
        await _ask(_open(client, options))
        session = OpcuaSession(client, options, limits, messages)
        await session.read_limits()
        yield session
    finally:
        with contextlib.suppress(*_FAULTS):
            async with timeout(_CLOSE_SECONDS):
                await client.uaclient.close_session(False)
        with contextlib.suppress(*_FAULTS):
            async with timeout(_CLOSE_SECONDS):
                # Ends what the library runs beside; the session is closed already.
                await client.disconnect()


async def _open(client: Client, options: OpcuaOptions) -> None:
    if options.user is not None and options.password_file is not None:
        client.set_user(options.user)
        client.set_password(read_password(options.password_file))
    if options.security != "none" and options.cert and options.key and options.server_cert:
        mode = ua.MessageSecurityMode
        own = options.cert.read_bytes()
        client.application_uri = _application_uri(own) or client.application_uri
        await client.set_security(
            security_policies.SecurityPolicyBasic256Sha256,
            _credential(own),
            _credential(options.key.read_bytes()),
            server_certificate=_credential(options.server_cert.read_bytes()),
            mode=mode.Sign if options.security == "sign" else mode.SignAndEncrypt,
        )
    await client.connect()


def _credential(content: bytes) -> CertProperties:
    """Return a certificate or key; the library would guess PEM or DER by file name."""
    return CertProperties(content, extension="pem" if _is_pem(content) else "der")


def _is_pem(content: bytes) -> bool:
    return content.lstrip().startswith(b"-----")


def _application_uri(certificate: bytes) -> str | None:
    """Return the application URI in a certificate, which servers compare with the session's."""
    load = x509.load_pem_x509_certificate if _is_pem(certificate) else x509.load_der_x509_certificate
    parsed = load(certificate)
    with contextlib.suppress(x509.ExtensionNotFound):
        names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return next(iter(names.get_values_for_type(x509.UniformResourceIdentifier)), None)
    return None


class OpcuaSession:
    """An open session. All methods raise `OpcuaError`."""

    def __init__(
        self, client: Client, options: OpcuaOptions, limits: CallLimits, messages: MessageLimits
    ) -> None:
        self._client, self._options = client, options
        self._limits, self._messages = limits, messages
        self._service = client.uaclient.session
        self._due: list[ua.SubscriptionAcknowledgement] = []
        self._silence = 2 * _alive_seconds(options) + 3 * options.publish

    async def server(self) -> str:
        """When the server was started."""
        node = self._client.get_node(standard(ObjectIds.Server_ServerStatus_StartTime))
        return str(await _ask(node.read_value()))

    async def read_limits(self) -> None:
        """Take over what the server states; it need not."""
        for limit, number in zip(structs.astuple(self._limits), _STATED, strict=True):
            asked = self._service.read_attributes([standard(number)], AttributeIds.Value)
            with contextlib.suppress(OpcuaError):
                (value,) = await _ask(asked)
                limit.state(None if value.Value is None else value.Value.Value)

    async def browse(self, ids: Sequence[ua.NodeId]) -> list[list[ua.ReferenceDescription]]:
        """What lies below each of these nodes."""
        room = self._messages.room(_BROWSE_BYTES + _longest(ids))
        return await self._limits.browse.ask(ids, lambda some: _ask(self._browse(some)), room)

    async def browse_names(self, ids: Sequence[ua.NodeId]) -> list[str | None]:
        """The browse name of each of these nodes, None for one that is not there."""
        values = await _ask(self._service.read_attributes(list(ids), AttributeIds.BrowseName))
        return [
            None if value.Value is None or value.Value.Value is None else value.Value.Value.Name
            for value in values
        ]

    async def have_history(self, ids: Sequence[str]) -> list[bool]:
        """Whether the server says that it has a history of each of these nodes that this user may read."""
        asked = [
            ua.ReadValueId(NodeId=ua.NodeId.from_string(ident), AttributeId=attribute)
            for ident in ids
            for attribute in (AttributeIds.UserAccessLevel, AttributeIds.Historizing)
        ]

        async def read(some: Sequence[ua.ReadValueId]) -> list[ua.DataValue]:
            return list(await _ask(self._service.read(ua.ReadParameters(NodesToRead=list(some)))))

        room = self._messages.room(_BROWSE_BYTES + _longest([one.NodeId for one in asked]))
        answers = await self._limits.read.ask(asked, read, room)
        values = [None if answer.Value is None else answer.Value.Value for answer in answers]
        return [
            (isinstance(access, int) and bool(access & 1 << ua.AccessLevel.HistoryRead))
            or historizing is True
            for access, historizing in zip(values[::2], values[1::2], strict=True)
        ]

    async def history(
        self, nodes: Sequence[tuple[str, bytes | None]], begin: float, end: float, count: int
    ) -> list[ua.HistoryReadResult]:
        """Up to `count` values of each node between two times in seconds; a node may have the point at
        which an earlier answer ended.
        """
        details = ua.ReadRawModifiedDetails(
            IsReadModified=False,
            StartTime=_date(begin),
            EndTime=_date(end),
            NumValuesPerNode=ua.Counter(count),
            ReturnBounds=False,
        )
        return await self._limits.history.ask(nodes, lambda some: self._history(details, some))

    async def release(self, node: str, point: bytes) -> None:
        """Give up a point at which an answer ended, of which a server has few."""
        with contextlib.suppress(OpcuaError):
            await self._history(ua.ReadRawModifiedDetails(), [(node, point)], release=True)

    @property
    def histories(self) -> int:
        """Most nodes of a request for history."""
        return self._limits.history.most

    async def _history(
        self,
        details: ua.ReadRawModifiedDetails,
        nodes: Sequence[tuple[str, bytes | None]],
        *,
        release: bool = False,
    ) -> list[ua.HistoryReadResult]:
        parameters = ua.HistoryReadParameters(
            HistoryReadDetails=details,
            TimestampsToReturn=ua.TimestampsToReturn.Both,
            ReleaseContinuationPoints=release,
            NodesToRead=[
                ua.HistoryReadValueId(NodeId=ua.NodeId.from_string(ident), ContinuationPoint=point)
                for ident, point in nodes
            ],
        )
        return list(await _ask(self._service.history_read(parameters)))

    async def type_names(self, types: Sequence[str]) -> list[str | None]:
        """The browse names of types of events."""
        return await self.browse_names([ua.NodeId.from_string(kind) for kind in types])

    async def refresh(self, subscription: Subscription) -> None:
        """Have the present state of all conditions sent; a server need not know how to."""
        call = ua.CallMethodRequest(
            ObjectId=standard(ObjectIds.ConditionType),
            MethodId=standard(ObjectIds.ConditionType_ConditionRefresh),
            InputArguments=[ua.Variant(subscription.id, ua.VariantType.UInt32)],
        )
        with contextlib.suppress(OpcuaError):
            await _ask(self._service.call([call]))

    async def subscribe(
        self, nodes: Sequence[FollowedNode], notifiers: Sequence[FollowedNode]
    ) -> Subscription:
        """A new subscription to these variables, and to the events of notifiers; the handle of each is its
        place.
        """
        options = self._options
        alive = max(1, round(_alive_seconds(options) / options.publish))
        parameters = ua.CreateSubscriptionParameters(
            RequestedPublishingInterval=options.publish * 1000,
            RequestedMaxKeepAliveCount=alive,
            RequestedLifetimeCount=max(3 * alive, round(options.keep / options.publish)),
            MaxNotificationsPerPublish=_VALUES,
            PublishingEnabled=True,
        )
        created = await _ask(self._service.create_subscription(parameters, _ignored))
        items = [_item(place, node, options) for place, node in enumerate(nodes)]
        items += [_events(len(nodes) + place, node, options) for place, node in enumerate(notifiers)]

        async def follow(
            some: Sequence[ua.MonitoredItemCreateRequest],
        ) -> list[ua.MonitoredItemCreateResult]:
            asked = ua.CreateMonitoredItemsParameters(
                SubscriptionId=created.SubscriptionId,
                TimestampsToReturn=ua.TimestampsToReturn.Both,
                ItemsToCreate=list(some),
            )
            return list(await _ask(self._service.create_monitored_items(asked)))

        room = self._messages.room(_ITEM_BYTES + _longest([item.ItemToMonitor.NodeId for item in items]))
        try:
            results = await self._limits.items.ask(items, follow, room)
        except OpcuaError:
            # A server has room for few subscriptions, and would keep this for as long as `keep`.
            await self.drop(int(created.SubscriptionId))
            raise
        refused = [
            (node, result.StatusCode.name)
            for node, result in zip([*nodes, *notifiers], results, strict=True)
            if not result.StatusCode.is_good()
        ]
        return Subscription(int(created.SubscriptionId), 0, refused=refused)

    async def take_over(self, position: Position) -> Subscription | None:
        """The subscription of an earlier session, None where the server does not have it any more."""
        asked = ua.TransferSubscriptionsParameters(
            SubscriptionIds=[ua.IntegerId(position.subscription)], SendInitialValues=False
        )
        try:
            (result,) = await _ask(self._service.transfer_subscriptions(asked))
        except (OpcuaError, ValueError):
            return None  # a server need not know how to
        if not result.StatusCode.is_good():
            return None
        waiting = sorted(int(number) for number in result.AvailableSequenceNumbers or ())
        since = [number for number in waiting if number >= position.sequence]
        return Subscription(position.subscription, position.sequence, since)

    async def drop(self, subscription: int) -> None:
        """Delete a subscription that is not followed any more."""
        with contextlib.suppress(OpcuaError):
            await _ask(self._service.delete_subscriptions([subscription]))

    async def again(self, subscription: Subscription, sequence: int) -> ua.NotificationMessage | None:
        """A notification that was not acknowledged, once more; None where the server does not have it."""
        try:
            async with timeout(ANSWER_SECONDS):
                message = await self._service.republish(subscription.id, sequence)
        except UaStatusCodeError:
            return None
        except _FAULTS as error:
            raise OpcuaError(str(error) or type(error).__name__) from error
        return message if message.SequenceNumber == sequence else None

    def stored(self, subscription: Subscription, sequence: int) -> None:
        """The notification is stored; the next request says so to the server."""
        subscription.sequence = sequence
        self._due.append(
            ua.SubscriptionAcknowledgement(
                SubscriptionId=ua.IntegerId(subscription.id), SequenceNumber=ua.Counter(sequence)
            )
        )

    async def next(self) -> ua.NotificationMessage:
        """The next notification, after what is stored was acknowledged."""
        while True:
            due, self._due = self._due, []
            response = await _ask(self._service.publish(due), self._silence)
            message: ua.NotificationMessage = response.Parameters.NotificationMessage
            if message.NotificationData:
                return message

    async def _browse(self, ids: Sequence[ua.NodeId]) -> list[list[ua.ReferenceDescription]]:
        asked = [
            ua.BrowseDescription(
                NodeId=node,
                ReferenceTypeId=standard(ObjectIds.HierarchicalReferences),
                NodeClassMask=ua.NodeClass.Object | ua.NodeClass.Variable,
                ResultMask=ua.BrowseResultMask.BrowseName | ua.BrowseResultMask.NodeClass,
            )
            for node in ids
        ]
        results = list(await self._service.browse(ua.BrowseParameters(NodesToBrowse=asked)))
        found = [list(result.References or ()) for result in results]
        for place, result in enumerate(results):
            if result.StatusCode.value == StatusCodes.BadNoContinuationPoints and len(asked) > 1:
                # The server holds too few for all of these nodes; those of the others are used up by now.
                (found[place],) = await self._browse([ids[place]])
                continue
            point = result.ContinuationPoint
            while point:
                parameters = ua.BrowseNextParameters(ContinuationPoints=[point])
                (more,) = await self._service.browse_next(parameters)
                found[place] += more.References or ()
                point = more.ContinuationPoint
        return found


def _date(seconds: float) -> datetime:
    return datetime.fromtimestamp(min(max(seconds, _MIN_TIME), _MAX_TIME), UTC)


def _alive_seconds(options: OpcuaOptions) -> float:
    return min(_MOST_ALIVE, max(_LEAST_ALIVE, _ALIVE_INTERVALS * options.publish))


def standard(number: int) -> ua.NodeId:
    """Return a standard node id."""
    return ua.NodeId(ua.Int32(number))


async def _ignored(_result: ua.PublishResult) -> None:
    pass


def _item(handle: int, node: FollowedNode, options: OpcuaOptions) -> ua.MonitoredItemCreateRequest:
    return ua.MonitoredItemCreateRequest(
        ItemToMonitor=ua.ReadValueId(NodeId=ua.NodeId.from_string(node.id), AttributeId=AttributeIds.Value),
        MonitoringMode=ua.MonitoringMode.Reporting,
        RequestedParameters=ua.MonitoringParameters(
            ClientHandle=ua.IntegerId(handle),
            SamplingInterval=(options.interval or 0.0) * 1000,
            QueueSize=ua.Counter(options.queue),
            DiscardOldest=True,
        ),
    )


def _events(handle: int, node: FollowedNode, options: OpcuaOptions) -> ua.MonitoredItemCreateRequest:
    one = _item(handle, node, options)
    one.ItemToMonitor.AttributeId = AttributeIds.EventNotifier
    one.RequestedParameters.SamplingInterval = 0.0
    one.RequestedParameters.Filter = event_filter()
    return one


async def _ask(request: Awaitable[Any], seconds: float = ANSWER_SECONDS * 3) -> Any:
    """Return a request's answer; raises `OpcuaError` for any library error."""
    try:
        async with timeout(seconds):
            return await request
    except TimeoutError:
        raise OpcuaError(f"the server has not answered within {seconds:.0f} s") from None
    except (*_FAULTS, SeedError, socket.gaierror, ValueError) as error:
        raise OpcuaError(str(error) or type(error).__name__, error) from error


def _longest(ids: Sequence[ua.NodeId]) -> int:
    return max((len(str(node.Identifier).encode()) for node in ids), default=0)
