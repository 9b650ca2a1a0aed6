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

/** An endpoint: one broker, or a name that stands for several brokers. */
record Endpoint(String name, String host, int port, boolean isTls) {
    /**
     * Logger of gRPC's transport, which is kept at INFO. At a fine level it logs the beginning of every message in hex,
     * including request ids and lease tokens. A program that sets the level of this very logger gets these messages;
     * setting the level of a parent logger is not enough. The reference prevents the collection of the logger.
     */
    private static final Logger TRANSPORT_LOGGER = Logger.getLogger("io.grpc.okhttp.OkHttpClientTransport");

    static {
        if (TRANSPORT_LOGGER.getLevel() == null) {
            TRANSPORT_LOGGER.setLevel(Level.INFO);
        }
    }

    static Endpoint parse(String url) {
        URI uri;
        try {
            uri = new URI(url);
        } catch (URISyntaxException e) {
            throw new InvalidEndpointException(url, e.getReason());
        }
        boolean isTls = "https".equals(uri.getScheme());
        if (!isTls && !"http".equals(uri.getScheme())) {
            throw new InvalidEndpointException(url, "is not an http or https URL");
        }
        if (uri.getHost() == null) {
            throw new InvalidEndpointException(url, "has no host");
        }
        int defaultPort = isTls ? 443 : 80;
        return new Endpoint(url, uri.getHost(), uri.getPort() < 0 ? defaultPort : uri.getPort(), isTls);
    }

    /** Returns true if messages to this endpoint cross a network unencrypted. */
    boolean isRemotePlaintext() {
        return !isTls && !isLoopback(host);
    }

    /** Returns true if a host is this machine: an address in 127.0.0.0/8, ::1, or localhost. */
    private static boolean isLoopback(String host) {
        if (!host.startsWith("[")) {
            return host.equalsIgnoreCase("localhost") || host.matches("127(\\.\\d{1,3}){3}");
        }
        try {
            // Brackets contain an address, so that no name is resolved.
            return InetAddress.getByName(host) instanceof Inet6Address address && address.isLoopbackAddress();
        } catch (UnknownHostException e) {
            return false;
        }
    }

    /** Creates a separate connection, which connects with its first call. */
    ManagedChannel createChannel(Tls tls) {
        return channelBuilder(tls).build();
    }

    /** Returns a builder of connections. Throws IllegalArgumentException if the certificates are invalid. */
    OkHttpChannelBuilder channelBuilder(Tls tls) {
        OkHttpChannelBuilder builder = OkHttpChannelBuilder.forAddress(host, port);
        if (isTls) {
            TlsConfiguration.configure(builder, tls);
        } else {
            builder.usePlaintext();
        }
        if (isTls && tls.serverName() != null) {
            builder.overrideAuthority(tls.serverName());
        }
        // Callbacks only wake the client thread. Retries are decided by this library, and proxies of the environment
        // are ignored.
        return builder.directExecutor()
                .disableRetry()
                .disableServiceConfigLookUp()
                .proxyDetector(address -> null);
    }
}
