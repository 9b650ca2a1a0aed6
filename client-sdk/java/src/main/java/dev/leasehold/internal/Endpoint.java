package dev.leasehold.internal;

import dev.leasehold.Tls;
import dev.leasehold.error.InvalidEndpointException;
import io.grpc.ManagedChannel;
import io.grpc.okhttp.OkHttpChannelBuilder;
import java.net.Inet6Address;
import java.net.InetAddress;
import java.net.URI;
import java.net.URISyntaxException;
import java.net.UnknownHostException;
import java.util.logging.Level;
import java.util.logging.Logger;

/** One broker, or a name behind which there are several. */
record Endpoint(String name, String host, int port, boolean isTls) {
    /**
     * gRPC logs the beginning of every message here at a fine level, in hex: request ids and lease tokens among it. A
     * program that sets this logger's own level sees them; one that only sets those above it does not. Kept, as loggers
     * are collected.
     */
    private static final Logger WIRE = Logger.getLogger("io.grpc.okhttp.OkHttpClientTransport");

    static {
        if (WIRE.getLevel() == null) {
            WIRE.setLevel(Level.INFO);
        }
    }

    static Endpoint of(String url) {
        URI uri;
        try {
            uri = new URI(url);
        } catch (URISyntaxException e) {
            throw new InvalidEndpointException(url, e.getReason());
        }
        boolean isTls = "https".equals(uri.getScheme());
        if (!isTls && !"http".equals(uri.getScheme())) {
            throw new InvalidEndpointException(url, "is no http or https URL");
        }
        if (uri.getHost() == null) {
            throw new InvalidEndpointException(url, "has no host");
        }
        int standard = isTls ? 443 : 80;
        return new Endpoint(url, uri.getHost(), uri.getPort() < 0 ? standard : uri.getPort(), isTls);
    }

    /** Returns whether what is sent there crosses a network unencrypted. */
    boolean isExposed() {
        return !isTls && !isLoopback(host);
    }

    /** Returns whether a host is this machine: an address in 127.0.0.0/8, ::1, or localhost. */
    private static boolean isLoopback(String host) {
        if (!host.startsWith("[")) {
            return host.equalsIgnoreCase("localhost") || host.matches("127(\\.\\d{1,3}){3}");
        }
        try {
            // In brackets there is an address: no name is looked up.
            return InetAddress.getByName(host) instanceof Inet6Address address && address.isLoopbackAddress();
        } catch (UnknownHostException e) {
            return false;
        }
    }

    /** A connection of its own, which begins with its first call. */
    ManagedChannel channel(Tls tls) {
        return builder(tls).build();
    }

    /** Fails with IllegalArgumentException if the certificates cannot be used. */
    OkHttpChannelBuilder builder(Tls tls) {
        OkHttpChannelBuilder builder = OkHttpChannelBuilder.forAddress(host, port);
        if (isTls) {
            Trusting.set(builder, tls);
        } else {
            builder.usePlaintext();
        }
        if (isTls && tls.serverName() != null) {
            builder.overrideAuthority(tls.serverName());
        }
        // Answers only wake the client's thread. What is repeated is decided here, and no proxy is meant.
        return builder.directExecutor()
                .disableRetry()
                .disableServiceConfigLookUp()
                .proxyDetector(address -> null);
    }
}
