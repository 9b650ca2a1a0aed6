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

/** Connection settings that all streams of a client share: endpoints, TLS and credential. */
public final class Endpoints {
    private static final Metadata.Key<String> AUTHORIZATION =
            Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

    private final List<Endpoint> endpoints;
    private final Tls tls;
    private final CredentialSource credentialSource;

    /** Validates the settings. URLs are separated by commas. */
    public Endpoints(String urls, Tls tls, CredentialSource credentialSource, boolean allowInsecureToken) {
        endpoints = Stream.of(urls.split(","))
                .map(String::strip)
                .filter(url -> !url.isEmpty())
                .map(Endpoint::parse)
                .toList();
        if (endpoints.isEmpty()) {
            throw new NoEndpointException();
        }
        if (credentialSource.authorization() != null && !allowInsecureToken) {
            endpoints.stream().filter(Endpoint::isRemotePlaintext).findFirst().ifPresent(endpoint -> {
                throw new InsecureTokenException(endpoint.name());
            });
        }
        this.tls = tls;
        this.credentialSource = credentialSource;
        // Invalid certificates fail here, and not in the client thread.
        endpoints.forEach(endpoint -> endpoint.channelBuilder(tls));
    }

    int count() {
        return endpoints.size();
    }

    /** Returns the endpoint with this index, modulo the number of endpoints. */
    Endpoint get(int index) {
        return endpoints.get(index % endpoints.size());
    }

    ManagedChannel createChannel(Endpoint endpoint) {
        return endpoint.createChannel(tls);
    }

    /** Returns the current value of the header {@code authorization}, or null. */
    String credential() {
        return credentialSource.authorization();
    }

    /** Returns a channel that adds this credential to every call, unless it is null. */
    static Channel withCredential(ManagedChannel channel, String credential) {
        Metadata headers = new Metadata();
        if (credential != null) {
            headers.put(AUTHORIZATION, credential);
        }
        return ClientInterceptors.intercept(channel, MetadataUtils.newAttachHeadersInterceptor(headers));
    }
}
