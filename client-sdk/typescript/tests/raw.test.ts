// Tests of the generated stubs without the client, and of unknown messages of a newer broker.

import assert from "node:assert/strict";
import { test } from "node:test";

import { credentials, status } from "@grpc/grpc-js";
import type { ServiceError } from "@grpc/grpc-js";
import type { AcquireResponse } from "@leasehold/client/v1";
import { HoldResponse, LockMode, LockServiceClient } from "@leasehold/client/v1";

import { failureFromRefused, lossFromEnded, refusedFromStatus } from "#dist/runtime/convert.js";

import { clientOf, sharedBroker } from "./fixtures.js";

function acquire(stub: LockServiceClient, name: string): Promise<AcquireResponse> {
  const target = { namespace: "", name, mode: LockMode.EXCLUSIVE, permits: 0, limit: 0 };
  const request = { target, owner: { id: "me", reason: "", labels: {} }, requestId: "" };
  return new Promise((resolve, reject) => {
    stub.acquire(request, (error, response) => {
      if (error === null) {
        resolve(response);
      } else {
        reject(error);
      }
    });
  });
}

test("the stubs acquire a lock, and a rejection has a reason", async (t) => {
  const broker = await sharedBroker();
  const stub = new LockServiceClient(broker.addr, credentials.createInsecure());
  t.after(() => {
    stub.close();
  });
  const { lease } = await acquire(stub, t.name);
  assert(Number(lease?.grants[0]?.fencingToken) > 0);
  const client = clientOf(t, broker.url);
  assert.equal(await client.tryAcquire(t.name), null);
  await assert.rejects(acquire(stub, t.name), (error) => {
    assert.equal((error as ServiceError).code, status.ABORTED);
    const refused = failureFromRefused(refusedFromStatus(error as ServiceError));
    assert.deepEqual([refused.code, refused.holders[0]?.leaseId], ["Held", lease?.leaseId]);
    return Number(refused.retryAfterMs) > 0;
  });
});

test("unknown messages of a newer broker are accepted", () => {
  // Encodes field 99, a message.
  assert.equal(HoldResponse.decode(Uint8Array.of(0x9a, 0x06, 0x02, 0x08, 0x01)).message, undefined);
  // Encodes ended { lease_id: "a", reason: 77, and a field 99 }.
  const ended = HoldResponse.decode(
    Uint8Array.of(0x3a, 0x09, 0x0a, 0x01, 0x61, 0x10, 0x4d, 0x98, 0x06, 0x01, 0x00),
  ).message;
  assert(ended?.$case === "ended");
  assert.deepEqual([ended.value.leaseId, lossFromEnded(ended.value).reason], ["a", "Other"]);
  const refused = HoldResponse.decode(Uint8Array.of(0x1a, 0x04, 0x08, 0x01, 0x10, 0x63)).message;
  assert(refused?.$case === "refused");
  assert.equal(failureFromRefused(refused.value).code, "Other");
});
