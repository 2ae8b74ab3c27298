// An OPC UA server that is not Python (node-opcua). It takes orders as JSON lines on its standard input and
// answers each with a line:
//   {"declare": ["Line1", "Speed"], "kind": "Double"}  makes a variable that has no value yet;
//   {"write": ["Line1", "Speed"], "value": 21.5, "status": "BadSensorFailure"}  sets it; both may be left out;
//   {"followed": ["Line1", "Speed"]}  answers once a client follows each change of it;
//   {"forget": true}  ends all subscriptions, as a server does that has lost them;
//   {"empty": true}  ends all sessions and removes all variables, as if it had just started;
//   {"limits": {"maxNodesPerBrowse": 2}}  are its operation limits from now on, which it does not state;
//   {"beat": 1000}  sets every variable to a new number each so many milliseconds.
"use strict";
const path = require("node:path");
const readline = require("node:readline");
const { setTimeout: pause } = require("node:timers/promises");

console.log = console.warn = console.error; // standard output carries the answers alone
const load = (name) => require(path.join(process.env.PETIOLE_NODE_MODULES, name));
const { OPCUAServer } = load("node-opcua-server");
const { DataType, Variant, VariantArrayType } = load("node-opcua-variant");
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
  for (const session of Object.values(engine._sessions)) {
    for (const subscription of [...session.publishEngine.subscriptions]) subscription.terminate();
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
  const { limits, transport } = JSON.parse(given || "{}");
  const certificates = new OPCUACertificateManager({
    rootFolder: path.join(directory, "pki"), automaticallyAcceptUnknownCertificate: true,
  });
  await certificates.initialize();
  const server = new OPCUAServer({
    port: Number(port), hostname: "127.0.0.1", nodeset_filename: [limits ? standard : nodes],
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
    if (order.followed) await followed(order.followed);
    if (order.forget) forget(server.engine);
    if (order.empty) empty(space, server.engine);
    if (order.limits) Object.assign(server.engine.serverCapabilities.operationLimits, order.limits);
    if (order.beat) setInterval(beat, order.beat);
    process.stdout.write("done\n");
  }
  process.exit(0);
}

main(process.argv.slice(2));
