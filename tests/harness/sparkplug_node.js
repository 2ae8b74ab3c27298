// An edge node of Sparkplug B that is not ours (sparkplug-client). It gives births when it connects and when it is
// asked for them, keeps the aliases that orders bring, and takes orders as JSON lines, each answered with a line:
//   {"births": {"": [...], "pump": [...]}}         what its births say from now on: of the node ("") and devices;
//   {"connect": true}                              connects, and is answered once the broker has its births;
//   {"data": [...], "device": "pump", "qos": 1}    publishes metrics, is answered once the broker has them;
//   {"skip": 3}                                    leaves out numbers (seq), as if messages were lost;
//   {"death": "pump"}                              publishes the death of a device;
//   {"rebirths": true}                             answers how often it was asked for its births.
"use strict";
const path = require("node:path");
const readline = require("node:readline");
const { newClient } = require(path.join(process.env.PETIOLE_NODE_MODULES, "sparkplug-client"));

const REBIRTH = "Node Control/Rebirth";
let client;
let births = {};
let rebirths = 0;
let qos = 0;
let waiting = [];

const copied = (metrics) => metrics.map((metric) => ({ ...metric }));
const payload = (metrics) => ({ timestamp: Date.now(), metrics: copied(metrics) });

function bear() {
  client.publishNodeBirth(payload([{ name: REBIRTH, type: "Boolean", value: false }, ...(births[""] || [])]));
  for (const device of Object.keys(births).filter((name) => name)) client.publishDeviceBirth(device, payload(births[device]));
}

function connect(url, group, node, id) {
  const mqttOptions = { reconnectPeriod: 200 };
  client = newClient({ serverUrl: url, username: "", password: "", groupId: group, edgeNode: node, clientId: id, mqttOptions });
  const publish = client.client.publish.bind(client.client);
  // The client has no option for the QoS, and none to wait for the broker.
  client.client.publish = (topic, data) => waiting.push(new Promise((resolve) => publish(topic, data, { qos }, resolve)));
  client.on("error", (error) => process.stderr.write(`${error}\n`));
  client.on("ncmd", (command) => {
    if (!command.metrics.some((metric) => metric.name === REBIRTH && metric.value === true)) return;
    rebirths += 1;
    bear();
  });
  return new Promise((resolve) => client.on("birth", () => { bear(); resolve(); }));
}

async function main([url, group, node, id]) {
  const answer = (text) => process.stdout.write(`${text}\n`);
  answer("ready");
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const order = JSON.parse(line);
    qos = order.qos || 0;
    waiting = [];
    if (order.births) births = order.births;
    if (order.connect) await connect(url, group, node, id);
    if (order.data && order.device) client.publishDeviceData(order.device, payload(order.data));
    else if (order.data) client.publishNodeData(payload(order.data));
    if (order.death) client.publishDeviceDeath(order.death, payload([]));
    for (let left = order.skip || 0; left > 0; left -= 1) client.incrementSeqNum();
    await Promise.all(waiting);
    answer(order.rebirths ? rebirths : "done");
  }
  process.exit(0);
}

main(process.argv.slice(2));
