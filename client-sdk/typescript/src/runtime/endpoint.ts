// Connection settings and credentials of an endpoint.

import { readFileSync } from "node:fs";

import type { ChannelCredentials, ChannelOptions } from "@grpc/grpc-js";
import { credentials, Metadata } from "@grpc/grpc-js";

import type { ConnectionSettings, Endpoint } from "../messages.js";

/** Time limit for establishing a connection and opening a stream on it. */
export const OPEN_TIMEOUT_MS = 2_000;
// A dead connection must be detected before the broker removes a queue position, 6 s after the last heartbeat. The
// detection needs 2 s without any message, and 2 s without a response to a ping.
const PING_MS = 2_000;
const CHANNEL_OPTIONS: ChannelOptions = {
  "grpc.keepalive_time_ms": PING_MS,
  "grpc.keepalive_timeout_ms": PING_MS,
  // Each stream has its own connection, so that a new stream does not reuse a broken connection.
  "grpc.use_local_subchannel_pool": 1,
  // The client repeats calls itself.
  "grpc.enable_retries": 0,
  "grpc.service_config_disable_resolution": 1,
  "grpc.enable_http_proxy": 0,
};

/** Returns the gRPC options of a connection. */
export function channelOptions(settings: ConnectionSettings): ChannelOptions {
  const name = settings.tls.serverName;
  return name === undefined ? CHANNEL_OPTIONS : { ...CHANNEL_OPTIONS, "grpc.ssl_target_name_override": name };
}

/** Returns the trusted root certificates and the client certificate for an endpoint. */
export function channelCredentials(settings: ConnectionSettings, endpoint: Endpoint): ChannelCredentials {
  if (!endpoint.isTls) {
    return credentials.createInsecure();
  }
  const { ca, key, cert } = settings.tls;
  return credentials.createSsl(pemBuffer(ca), pemBuffer(key), pemBuffer(cert));
}

/** Returns the metadata of a call, with the credential. Throws if the token file cannot be read. */
export function callMetadata(settings: ConnectionSettings): Metadata {
  return metadataOf(credentialOf(settings));
}

/** Returns the metadata of a call with the given credential. */
export function metadataOf(credential: string | undefined): Metadata {
  const metadata = new Metadata();
  if (credential !== undefined) {
    metadata.set("authorization", credential);
  }
  return metadata;
}

/** Returns the value of the `authorization` header. Throws if the token file cannot be read. */
export function credentialOf(settings: ConnectionSettings): string | undefined {
  const file = settings.bearerTokenFile;
  const token = file === undefined ? settings.bearerToken : readFileSync(file, "utf8").trim();
  return token === undefined ? undefined : `Bearer ${token}`;
}

function pemBuffer(text: string | undefined): Buffer | null {
  return text === undefined ? null : Buffer.from(text);
}
