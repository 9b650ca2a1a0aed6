// Tests of the generated stubs without the client, and of unknown messages of a newer broker.

import assert from "node:assert/strict";
import { test } from "node:test";

import { credentials, status } from "@grpc/grpc-js";
import type { ServiceError } from "@grpc/grpc-js";
import type { LeaseholdError } from "@leasehold/client";
import type { AcquireResponse } from "@leasehold/client/v1";
import {
  Closure,
  ClosureCause,
  Contention,
  ErrorReason,
  HoldResponse,
  LockMode,
  LockServiceClient,
} from "@leasehold/client/v1";

import { errorOfFailure } from "#dist/failures.js";
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

function closedError(closure: Contention["closure"]): LeaseholdError {
  const value = Buffer.from(Contention.encode({ holders: [], queueLength: 0, closure }).finish());
  const details = [{ typeUrl: "type.googleapis.com/leasehold.v1.Contention", value }];
  const reason = ErrorReason.LOCK_HELD;
  const refused = { callId: 1, reason, code: status.ABORTED, message: "a is closed", details };
  return errorOfFailure(failureFromRefused(refused));
}

test("the error says by whom the lock is closed", () => {
  const owner = { id: "ops", reason: "database migration", labels: {} };
  const until = new Date(60_000);
  const remaining = { seconds: 30, nanos: 0 };
  const error = closedError({ cause: ClosureCause.OPERATOR, owner, untilTime: until, remaining });
  const expected = { cause: "Operator", owner: "ops", reason: "database migration", until, remainingMs: 30_000 };
  assert.deepEqual(error.closure, expected);
  assert.equal(error.message, "a is closed; closed by ops (database migration)");
});

test("a closure of a newer broker or of a hidden owner is accepted", () => {
  // Encodes closure { cause: 99 }.
  const error = closedError(Closure.decode(Uint8Array.of(0x08, 0x63)));
  assert.deepEqual(error.closure, { cause: "Other", owner: "", reason: "", until: undefined, remainingMs: 0 });
  assert.equal(error.message, "a is closed");
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
