// A Modbus server that is not Python (modbus-serial), over TCP or on a serial line. Its registers hold their own
// address until they are set. It takes orders as JSON lines on its standard input and answers each with a line:
//   {"set": [40, 41], "address": 100}      sets registers, holding and input;
//   {"unit": 3, "slow": 5000}              has a unit answer after so many milliseconds;
//   {"unit": 3, "refuse": 4}               has a unit answer with an exception, 0 for none;
//   {"forbid": 105}                        refuses requests that touch this address;
//   {"requests": true}                     answers how many registers were read in how many requests.
"use strict";
const path = require("node:path");
const readline = require("node:readline");
const { setTimeout: pause } = require("node:timers/promises");
const { ServerTCP, ServerSerial } = require(path.join(process.env.PETIOLE_NODE_MODULES, "modbus-serial"));

const registers = new Map();
const units = new Map();
const forbidden = new Set();
let requests = 0;

async function read(address, count, unit) {
  requests += 1;
  const { slow = 0, refuse = 0 } = units.get(unit) || {};
  await pause(slow);
  if (refuse) throw { modbusErrorCode: refuse };
  const addresses = Array.from({ length: count }, (_, place) => address + place);
  if (addresses.some((at) => forbidden.has(at))) throw { modbusErrorCode: 2 };
  return addresses.map((at) => registers.get(at) ?? at);
}

function answered(reading, callback, map = (words) => words) {
  reading.then((words) => callback(null, map(words)), (error) => callback(error));
}

const several = (address, count, unit, callback) => answered(read(address, count, unit), callback);
const one = (map) => (address, unit, callback) => answered(read(address, 1, unit), callback, ([word]) => map(word));
const isOdd = (word) => word % 2 === 1;
const vector = {
  getMultipleHoldingRegisters: several, getHoldingRegister: one((word) => word), getCoil: one(isOdd),
  getMultipleInputRegisters: several, getInputRegister: one((word) => word), getDiscreteInput: one(isOdd),
};

async function main([place]) {
  const answer = (text) => process.stdout.write(`${text}\n`);
  if (place.startsWith("/")) {
    const options = { port: place, baudRate: 19200, parity: "even", unitID: 255, openCallback: () => answer("ready") };
    new ServerSerial(vector, options);
  } else {
    new ServerTCP(vector, { host: "127.0.0.1", port: Number(place), unitID: 255 }).on("initialized", () => answer("ready"));
  }
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const order = JSON.parse(line);
    if (order.set) order.set.forEach((word, offset) => registers.set(order.address + offset, word));
    if (order.unit) units.set(order.unit, order);
    if (order.forbid) forbidden.add(order.forbid);
    answer(order.requests ? requests : "done");
  }
  process.exit(0);
}

main(process.argv.slice(2));
