// Tests of settings, connections and credentials.

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

import { acquireAndRelease, clientOf, sharedBroker, startServer, waitUntil } from "./fixtures.js";
import { freePort, Program } from "./processes.js";
import { Proxy } from "./proxy.js";

test("invalid settings are rejected by the constructor", () => {
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

test("a token is sent unencrypted to other machines only if that is allowed", (t) => {
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

test("endpoints are tried in order, and the error names them", async (t) => {
  const unreachableUrl = `http://127.0.0.1:${String(await freePort())}`;
  await assert.rejects(clientOf(t, unreachableUrl).connect(), (error) => {
    return error instanceof UnreachableError && error.message.includes(unreachableUrl);
  });
  const client = await clientOf(t, `${unreachableUrl}, ${(await sharedBroker()).url}`).connect();
  await acquireAndRelease(client, t.name);
});

test("get fails with UnavailableError without a broker", async (t) => {
  const unreachableUrl = `http://127.0.0.1:${String(await freePort())}`;
  await assert.rejects(clientOf(t, unreachableUrl).get("a"), UnavailableError);
});

test("an unused client shuts down at once", async () => {
  const client = new Client("http://127.0.0.1:1");
  await client.shutdown();
  await assert.rejects(client.acquire("a"), { code: "Closed" });
});

test("the token file is read again for each connection", async (t) => {
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
  // The server records the credential, and rejects every call.
  const credentials: unknown[] = [];
  const server = createServer();
  server.on("stream", (stream, headers) => {
    credentials.push(headers.authorization);
    write("second");
    const responseHeaders = { ":status": 200, "content-type": "application/grpc", "grpc-status": "14" };
    stream.respond(responseHeaders, { endStream: true });
  });
  const client = clientOf(t, await startServer(t, server), { bearerTokenFile: file });
  await assert.rejects(client.connect(), UnreachableError);
  await assert.rejects(client.connect(), UnreachableError);
  assert.deepEqual(credentials.slice(0, 2), ["Bearer first", "Bearer second"]);
});

test("a changed token in the token file is sent to the broker", async (t) => {
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
  await waitUntil(() => Promise.resolve(proxy.sentText.includes("Bearer second")));
  lease.check();
});

test("a credential that no broker accepts fails calls at once", async (t) => {
  const server = createServer();
  server.on("stream", (stream) => {
    stream.respond({ ":status": 200, "content-type": "application/grpc", "grpc-status": "16" }, { endStream: true });
  });
  const client = clientOf(t, await startServer(t, server), { bearerToken: "unknown" });
  await assert.rejects(client.connect(), CredentialRefusedError);
  await assert.rejects(client.acquire("a", { waitMs: 60_000 }), UnauthenticatedError);
});

test("only the worker thread loads gRPC", async (t) => {
  const code = `
    import "@leasehold/client";
    import { createRequire } from "node:module";
    const loaded = Object.keys(createRequire(import.meta.url).cache).some((file) => file.includes("grpc-js"));
    console.log("loaded", loaded);
  `;
  const program = new Program([process.execPath, "--input-type=module", "-e", code]);
  t.after(() => program.kill());
  assert.equal(await program.waitForLine(/^loaded/), "loaded false");
});
