// An OPC UA server that is not Python (node-opcua). It takes orders as JSON lines on its standard input and
// answers each with a line:
//   {"declare": ["Line1", "Speed"], "kind": "Double"}  makes a variable that has no value yet;
//   {"write": ["Line1", "Speed"], "value": 21.5, "status": "BadSensorFailure"}  sets it; both may be left out;
//   {"followed": ["Line1", "Speed"]}  answers once a client follows each change of it;
//   {"forget": true}  ends all subscriptions, as a server does that has lost them;
//   {"empty": true}  ends all sessions and removes all variables, as if it had just started;
//   {"history": ["Line1", "Speed"]}  keeps a history of it in a file, which outlives the server;
//   {"record": ["Line1", "Speed"], "values": [[1790000000.5, 21.5, "Good"]]}  adds to the history alone; the status may be left out;
//   {"reads": {"status": "BadTimeout", "after": 3, "times": 2}}  so many reads of history fail with a status, after so many more;
//   {"reads": {}}  answers how many reads of history there were;
//   {"page": 100}  gives no more values of a variable at once, and no continuation point for the others;
//   {"lag": true}  hides what is added to the history, until it is false;
//   {"alarm": ["Line1", "Speed"], "high": 50}  makes an alarm of it, with the name High;
//   {"event": "door open"}  sends an event of the server;
//   {"limits": {"maxNodesPerBrowse": 2}}  are its operation limits from now on, which it does not state;
//   {"beat": 1000}  sets every variable to a new number each so many milliseconds.
"use strict";
const fs = require("node:fs");
const path = require("node:path");
const readline = require("node:readline");
const { setTimeout: pause } = require("node:timers/promises");

console.log = console.warn = console.error; // standard output carries the answers alone
const load = (name) => require(path.join(process.env.PETIOLE_NODE_MODULES, name));
const { OPCUAServer } = load("node-opcua-server");
const { DataType, Variant, VariantArrayType } = load("node-opcua-variant");
const { DataValue } = load("node-opcua-data-value");
const { HistoryReadResult } = load("node-opcua-service-history");
const { StatusCodes } = load("node-opcua-status-code");
const { OPCUACertificateManager } = load("node-opcua-certificate-manager");
// The standard's whole address space takes seconds to load, and the tests need no more than this of it.
const nodes = path.join(process.env.PETIOLE_NODE_MODULES, "node-opcua-address-space/nodesets/mini.Nodeset2.xml");
const standard = path.join(process.env.PETIOLE_NODE_MODULES, "node-opcua-nodesets/nodesets/Opc.Ua.NodeSet2.xml");

const folders = new Map();
const variables = new Map();

function folder(space, names) {
  const key = names.join("/");
  if (!key) return space.rootFolder.objects;
  if (!folders.has(key)) {
    const options = { browseName: names.at(-1), nodeId: `s=${key}` };
    folders.set(key, space.getOwnNamespace().addFolder(folder(space, names.slice(0, -1)), options));
  }
  return folders.get(key);
}

function declare(space, names, kind) {
  const variable = space.getOwnNamespace().addVariable({
    componentOf: folder(space, names.slice(0, -1)), browseName: names.at(-1), nodeId: `s=${names.join("/")}`,
    dataType: kind, valueRank: -2, minimumSamplingInterval: 0,
  });
  variable.setValueFromSource(new Variant({ dataType: DataType.Null }), StatusCodes.BadWaitingForInitialData);
  variables.set(names.join("/"), { variable, dataType: DataType[kind] });
}

function write({ write: names, value, status }) {
  const { variable, dataType } = variables.get(names.join("/"));
  const variant = value === undefined ? { dataType: DataType.Null } : { dataType, value };
  if (Array.isArray(value)) variant.arrayType = VariantArrayType.Array;
  variable.setValueFromSource(new Variant(variant), StatusCodes[status || "Good"]);
}

// The historian of node-opcua keeps values in memory and has no order to fail.
const historians = new Map();
let reads = 0;
let failing = { after: 0, times: 0 };
let lags = false;
let page;

class FileHistorian {
  constructor(file) {
    this.file = file;
    this.hidden = [];
    const lines = fs.existsSync(file) ? fs.readFileSync(file, "utf8").split("\n").filter(Boolean) : [];
    this.rows = lines.map((line) => JSON.parse(line));
  }

  push(data) {
    if (data.value.dataType === DataType.Null) return;
    this.add([[data.sourceTimestamp.getTime() / 1000, data.value.value, data.statusCode.name]]);
  }

  add(rows) {
    this.hidden.push(...rows);
    if (!lags) this.show();
  }

  show() {
    fs.appendFileSync(this.file, this.hidden.map((row) => `${JSON.stringify(row)}\n`).join(""));
    this.rows.push(...this.hidden);
    this.rows.sort((one, other) => one[0] - other[0]);
    this.hidden = [];
  }

  extractDataValues(details, most, isReversed, isBackwards, callback) {
    reads += 1;
    failing.after -= 1;
    if (failing.after < 0 && failing.times > 0) {
      failing.times -= 1;
      return callback(new Error(failing.status));
    }
    const [begin, end] = [details.startTime.getTime() / 1000, details.endTime.getTime() / 1000];
    const rows = this.rows.filter((row) => begin <= row[0] && row[0] <= end);
    const made = ([time, value, status]) => new DataValue({
      value: { dataType: DataType.Double, value }, sourceTimestamp: new Date(time * 1000), statusCode: StatusCodes[status || "Good"],
    });
    return callback(null, rows.slice(0, most || undefined).slice(0, page).map(made));
  }
}

function keepHistory(space, names, directory) {
  const { variable } = variables.get(names.join("/"));
  const historian = new FileHistorian(path.join(directory, `${names.join("-")}.history`));
  historians.set(names.join("/"), historian);
  space.installHistoricalDataNode(variable, { historian });
  const read = variable._historyReadRaw;
  variable._historyReadRaw = function readOrFail(context, details, range, encoding, point, callback) {
    return read.call(this, context, details, range, encoding, point, (error, result) => {
      if (!error) return callback(null, result);
      return callback(null, new HistoryReadResult({ statusCode: StatusCodes[error.message] }));
    });
  };
}

function makeAlarm(space, names, high) {
  const { variable } = variables.get(names.join("/"));
  const source = space.getOwnNamespace().addObject({
    browseName: `${names.at(-1)} source`, organizedBy: space.rootFolder.objects, eventSourceOf: space.rootFolder.objects.server,
  });
  space.getOwnNamespace().instantiateNonExclusiveLimitAlarm("NonExclusiveLimitAlarmType", {
    browseName: "High", conditionName: "High", conditionSource: source, inputNode: variable, highLimit: high, highHighLimit: 2 * high,
  });
}

let beats = 0;
function beat() {
  beats += 1;
  for (const key of variables.keys()) write({ write: key.split("/"), value: beats });
}

async function followed(names) {
  const { variable } = variables.get(names.join("/"));
  while (variable.listenerCount("value_changed") === 0) await pause(20);
}

function forget(engine) {
  const orphans = engine._orphanPublishEngine; // of sessions that ended
  const engines = Object.values(engine._sessions).map((session) => session.publishEngine);
  for (const one of orphans ? [...engines, orphans] : engines) {
    for (const subscription of [...one.subscriptions]) subscription.terminate();
  }
}

function empty(space, engine) {
  forget(engine);
  for (const session of Object.values(engine._sessions)) {
    engine.closeSession(session.authenticationToken, true, "Terminated");
  }
  for (const { variable } of variables.values()) space.deleteNode(variable);
  for (const made of [...folders.values()].reverse()) space.deleteNode(made);
  variables.clear();
  folders.clear();
}

async function main([port, directory, given]) {
  // Limits that are given here are stated, for which the standard's whole address space is needed.
  const { limits, transport, history } = JSON.parse(given || "{}");
  const certificates = new OPCUACertificateManager({
    rootFolder: path.join(directory, "pki"), automaticallyAcceptUnknownCertificate: true,
  });
  await certificates.initialize();
  const server = new OPCUAServer({
    port: Number(port), hostname: "127.0.0.1", nodeset_filename: [limits || history ? standard : nodes],
    transportSettings: transport && { adjustTransportLimits: (hello) => ({ ...hello, ...transport }) },
    serverCertificateManager: certificates, userCertificateManager: certificates,
    serverCapabilities: { minSupportedSampleRate: 0, operationLimits: limits }, // each change is reported, rather than samples
  });
  await server.initialize();
  const space = server.engine.addressSpace;
  await server.start();
  process.stdout.write("ready\n");
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const order = JSON.parse(line);
    if (order.declare) declare(space, order.declare, order.kind);
    if (order.write) write(order);
    if (order.history) keepHistory(space, order.history, directory);
    if (order.record) historians.get(order.record.join("/")).add(order.values);
    if (order.reads && order.reads.status) failing = { after: 0, ...order.reads };
    if (order.page) page = order.page;
    if (order.lag !== undefined) lags = order.lag;
    if (order.lag === false) for (const historian of historians.values()) historian.show();
    if (order.alarm) makeAlarm(space, order.alarm, order.high);
    if (order.event) {
      space.rootFolder.objects.server.raiseEvent("BaseEventType", {
        message: { dataType: DataType.LocalizedText, value: { text: order.event } },
        sourceName: { dataType: DataType.String, value: "gate" },
        severity: { dataType: DataType.UInt16, value: 700 },
      });
    }
    if (order.followed) await followed(order.followed);
    if (order.forget) forget(server.engine);
    if (order.empty) empty(space, server.engine);
    if (order.limits) Object.assign(server.engine.serverCapabilities.operationLimits, order.limits);
    if (order.beat) setInterval(beat, order.beat);
    process.stdout.write(order.reads ? `${reads}\n` : "done\n");
  }
  process.exit(0);
}

main(process.argv.slice(2));
