// How brokers are reached and convinced.

import assert from "node:assert/strict";
import { mkdtempSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http2";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import {
  Client,
  CredentialRefusedError,
  InsecureTokenError,
  InvalidCredentialError,
  InvalidEndpointError,
  InvalidOwnerError,
  NoEndpointError,
  UnauthenticatedError,
  UnavailableError,
  UnreachableError,
} from "@leasehold/client";

import { freePort, Program } from "./processes.js";
import { Proxy } from "./proxy.js";
import { clientOf, freeServer, sharedBroker, takes, until } from "./site.js";

test("settings that are none are told at once", () => {
  const url = "http://127.0.0.1:7070";
  assert.throws(() => new Client(" , "), NoEndpointError);
  assert.throws(() => new Client([]), NoEndpointError);
  for (const endpoint of ["ftp://broker:7070", "127.0.0.1:7070", "broker:7070", "http://"]) {
    assert.throws(() => new Client(endpoint), InvalidEndpointError);
  }
  assert.throws(() => new Client(url, { owner: "" }), InvalidOwnerError);
  assert.throws(() => new Client(url, { owner: "x".repeat(257) }), InvalidOwnerError);
  for (const bearerToken of ["tür", "a\nb"]) {
    assert.throws(
      () => new Client(url, { bearerToken }),
      (error) => error instanceof InvalidCredentialError && !error.message.includes(bearerToken),
    );
  }
  assert.throws(() => new Client(url, { bearerTokenFile: "/nowhere" }), InvalidCredentialError);
});

test("a token goes unencrypted to other machines only if that is allowed", (t) => {
  const dir = mkdtempSync(join(tmpdir(), "leasehold-"));
  t.after(() => {
    rmSync(dir, { recursive: true });
  });
  const bearerTokenFile = join(dir, "token");
  writeFileSync(bearerTokenFile, "secret\n");
  for (const token of [{ bearerToken: "secret" }, { bearerTokenFile }]) {
    for (const url of [
      "http://127.0.0.1:1",
      "http://127.9.8.7",
      "http://[::1]:1",
      "http://localhost",
      "http://LocalHost:1",
      "https://10.1.2.3",
      "https://locks.example.com",
    ]) {
      assert.ok(new Client(url, token), url);
    }
    for (const url of [
      "http://10.1.2.3:1",
      "http://0.0.0.0",
      "http://[2001:db8::1]:1",
      "http://locks.example.com",
      "http://localhost.example.com",
      "http://127.0.0.1.example.com",
    ]) {
      assert.throws(
        () => new Client(`http://127.0.0.1:1,${url}`, token),
        (error) => error instanceof InsecureTokenError && error.endpoint === url && !error.message.includes("secret"),
      );
      assert.ok(new Client(url, { ...token, allowInsecureToken: true }));
      assert.ok(new Client(url));
    }
  }
});

test("endpoints are tried in their order, and the error names them", async (t) => {
  const nowhere = `http://127.0.0.1:${String(await freePort())}`;
  await assert.rejects(clientOf(t, nowhere).connect(), (error) => {
    return error instanceof UnreachableError && error.message.includes(nowhere);
  });
  const client = await clientOf(t, `${nowhere}, ${(await sharedBroker()).url}`).connect();
  await takes(client, t.name);
});

test("a look without a broker says so", async (t) => {
  const nowhere = `http://127.0.0.1:${String(await freePort())}`;
  await assert.rejects(clientOf(t, nowhere).get("a"), UnavailableError);
});

test("a client that was not used is ended at once", async () => {
  const client = new Client("http://127.0.0.1:1");
  await client.shutdown();
  await assert.rejects(client.acquire("a"), { code: "Closed" });
});

test("the file of a token is read again for each connection", async (t) => {
  const dir = mkdtempSync(join(tmpdir(), "leasehold-token-"));
  t.after(() => {
    rmSync(dir, { recursive: true });
  });
  const file = join(dir, "token");
  const write = (token: string) => {
    writeFileSync(`${file}.new`, `${token}\n`);
    renameSync(`${file}.new`, file);
  };
  write("first");
  // It notes the credential, and refuses every call.
  const seen: unknown[] = [];
  const server = createServer();
  server.on("stream", (stream, headers) => {
    seen.push(headers.authorization);
    write("second");
    const refused = { ":status": 200, "content-type": "application/grpc", "grpc-status": "14" };
    stream.respond(refused, { endStream: true });
  });
  const client = clientOf(t, await freeServer(t, server), { bearerTokenFile: file });
  await assert.rejects(client.connect(), UnreachableError);
  await assert.rejects(client.connect(), UnreachableError);
  assert.deepEqual(seen.slice(0, 2), ["Bearer first", "Bearer second"]);
});

test("another token of the file is shown to the broker", async (t) => {
  const dir = mkdtempSync(join(tmpdir(), "leasehold-token-"));
  t.after(() => {
    rmSync(dir, { recursive: true });
  });
  const file = join(dir, "token");
  writeFileSync(file, "first\n");
  const proxy = await Proxy.start(t, (await sharedBroker()).addr);
  const client = clientOf(t, proxy.url, { bearerTokenFile: file });
  const lease = await client.acquire(t.name);
  writeFileSync(file, "second\n");
  await until(() => Promise.resolve(proxy.sent.includes("Bearer second")));
  lease.check();
});

test("a credential that nobody accepts is told at once", async (t) => {
  const server = createServer();
  server.on("stream", (stream) => {
    stream.respond({ ":status": 200, "content-type": "application/grpc", "grpc-status": "16" }, { endStream: true });
  });
  const client = clientOf(t, await freeServer(t, server), { bearerToken: "unknown" });
  await assert.rejects(client.connect(), CredentialRefusedError);
  await assert.rejects(client.acquire("a", { waitMs: 60_000 }), UnauthenticatedError);
});

test("nothing but the thread loads gRPC", async (t) => {
  const code = `
    import "@leasehold/client";
    import { createRequire } from "node:module";
    const loaded = Object.keys(createRequire(import.meta.url).cache).some((file) => file.includes("grpc-js"));
    console.log("loaded", loaded);
  `;
  const program = new Program([process.execPath, "--input-type=module", "-e", code]);
  t.after(() => program.kill());
  assert.equal(await program.line(/^loaded/), "loaded false");
});
