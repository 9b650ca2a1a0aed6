package dev.leasehold.internal;

import dev.leasehold.Tls;
import dev.leasehold.error.InsecureTokenException;
import dev.leasehold.error.NoEndpointException;
import io.grpc.Channel;
import io.grpc.ClientInterceptors;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.stub.MetadataUtils;
import java.util.List;
import java.util.stream.Stream;

/** Where the brokers are, and how to convince them: what all streams of a client share. */
public final class Brokers {
    private static final Metadata.Key<String> AUTHORIZATION =
            Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

    private final List<Endpoint> endpoints;
    private final Tls tls;
    private final Source source;

    /** Checks what a client is made of. URLs are separated by commas. */
    public Brokers(String urls, Tls tls, Source source, boolean allowInsecureToken) {
        endpoints = Stream.of(urls.split(","))
                .map(String::strip)
                .filter(url -> !url.isEmpty())
                .map(Endpoint::of)
                .toList();
        if (endpoints.isEmpty()) {
            throw new NoEndpointException();
        }
        if (source.now() != null && !allowInsecureToken) {
            endpoints.stream().filter(Endpoint::isExposed).findFirst().ifPresent(exposed -> {
                throw new InsecureTokenException(exposed.name());
            });
        }
        this.tls = tls;
        this.source = source;
        // Certificates that cannot be used fail here, and not in the client's thread.
        endpoints.forEach(endpoint -> endpoint.builder(tls));
    }

    int count() {
        return endpoints.size();
    }

    /** The endpoint with this number; after the last comes the first again. */
    Endpoint at(int number) {
        return endpoints.get(number % endpoints.size());
    }

    ManagedChannel channel(Endpoint endpoint) {
        return endpoint.channel(tls);
    }

    /** What is to be shown now, or null. */
    String credential() {
        return source.now();
    }

    /** The same channel, showing this credential with every call. */
    static Channel shown(ManagedChannel channel, String credential) {
        Metadata shown = new Metadata();
        if (credential != null) {
            shown.put(AUTHORIZATION, credential);
        }
        return ClientInterceptors.intercept(channel, MetadataUtils.newAttachHeadersInterceptor(shown));
    }
}
