// How a broker is reached and convinced.

import { readFileSync } from "node:fs";

import type { ChannelCredentials, ChannelOptions } from "@grpc/grpc-js";
import { credentials, Metadata } from "@grpc/grpc-js";

import type { Brokers, Endpoint } from "../order.js";

/** Establishing a connection, and opening a stream on it. */
export const OPEN_LIMIT_MS = 2_000;
// A dead connection must be known before a place in line is given up, 6 s after the last heartbeat: 2 s without any
// message, and 2 s without an answer to a ping.
const PING_MS = 2_000;
const OPTIONS: ChannelOptions = {
  "grpc.keepalive_time_ms": PING_MS,
  "grpc.keepalive_timeout_ms": PING_MS,
  // Each stream has a connection of its own: a new one must not find the broken one again.
  "grpc.use_local_subchannel_pool": 1,
  // What is repeated is decided here.
  "grpc.enable_retries": 0,
  "grpc.service_config_disable_resolution": 1,
  "grpc.enable_http_proxy": 0,
};

/** Settings of a connection to this endpoint. */
export function channelOptions(brokers: Brokers): ChannelOptions {
  const name = brokers.tls.serverName;
  return name === undefined ? OPTIONS : { ...OPTIONS, "grpc.ssl_target_name_override": name };
}

/** Trust in this endpoint, and the certificate that it is shown. */
export function channelCredentials(brokers: Brokers, endpoint: Endpoint): ChannelCredentials {
  if (!endpoint.isTls) {
    return credentials.createInsecure();
  }
  const { ca, key, cert } = brokers.tls;
  return credentials.createSsl(pem(ca), pem(key), pem(cert));
}

/** What every call and every stream shows. Throws if the file of the token cannot be read. */
export function callMetadata(brokers: Brokers): Metadata {
  return metadataOf(credentialOf(brokers));
}

/** The same with this credential. */
export function metadataOf(credential: string | undefined): Metadata {
  const metadata = new Metadata();
  if (credential !== undefined) {
    metadata.set("authorization", credential);
  }
  return metadata;
}

/** As it stands in the header. Throws if the file of the token cannot be read. */
export function credentialOf(brokers: Brokers): string | undefined {
  const file = brokers.bearerTokenFile;
  const token = file === undefined ? brokers.bearerToken : readFileSync(file, "utf8").trim();
  return token === undefined ? undefined : `Bearer ${token}`;
}

function pem(text: string | undefined): Buffer | null {
  return text === undefined ? null : Buffer.from(text);
}
