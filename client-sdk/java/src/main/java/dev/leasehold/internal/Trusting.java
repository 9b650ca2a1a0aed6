package dev.leasehold.internal;

import dev.leasehold.Tls;
import io.grpc.okhttp.OkHttpChannelBuilder;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.InvalidKeySpecException;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Base64;
import java.util.Collection;
import javax.net.ssl.KeyManager;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManager;
import javax.net.ssl.TrustManagerFactory;

/** TLS as gRPC is to speak it. Its own settings end at TLS 1.2, and brokers begin with TLS 1.3. */
final class Trusting {
    private static final String[] VERSIONS = {"TLSv1.3", "TLSv1.2"};
    /** Of TLS 1.3, and those of TLS 1.2 that HTTP/2 allows, for what may stand before brokers. */
    private static final String[] SUITES = {
        "TLS_AES_128_GCM_SHA256",
        "TLS_AES_256_GCM_SHA384",
        "TLS_CHACHA20_POLY1305_SHA256",
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    };

    private static final String[] KINDS_OF_KEYS = {"EC", "RSA", "Ed25519"};
    private static final char[] NO_PASSWORD = {};

    private Trusting() {}

    /** Has a channel speak TLS. Fails with IllegalArgumentException if the certificates cannot be used. */
    static OkHttpChannelBuilder set(OkHttpChannelBuilder builder, Tls tls) {
        try {
            SSLContext context = SSLContext.getInstance("TLS");
            context.init(own(tls), authorities(tls), null);
            return builder.useTransportSecurity()
                    .sslSocketFactory(context.getSocketFactory())
                    .tlsConnectionSpec(VERSIONS, SUITES);
        } catch (GeneralSecurityException | IOException e) {
            throw new IllegalArgumentException("the certificates cannot be used: " + e.getMessage());
        }
    }

    private static TrustManager[] authorities(Tls tls) throws GeneralSecurityException, IOException {
        if (tls.ca() == null) {
            return null;
        }
        KeyStore store = emptyStore();
        int number = 0;
        for (Certificate one : certificates(tls.ca())) {
            store.setCertificateEntry("ca-" + number++, one);
        }
        TrustManagerFactory factory = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        factory.init(store);
        return factory.getTrustManagers();
    }

    private static KeyManager[] own(Tls tls) throws GeneralSecurityException, IOException {
        if (tls.certificate() == null) {
            return null;
        }
        KeyStore store = emptyStore();
        Certificate[] chain = certificates(tls.certificate()).toArray(new Certificate[0]);
        store.setKeyEntry("own", key(tls.key()), NO_PASSWORD, chain);
        KeyManagerFactory factory = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        factory.init(store, NO_PASSWORD);
        return factory.getKeyManagers();
    }

    private static KeyStore emptyStore() throws GeneralSecurityException, IOException {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, NO_PASSWORD);
        return store;
    }

    private static Collection<? extends Certificate> certificates(byte[] pem) throws GeneralSecurityException {
        Collection<? extends Certificate> found =
                CertificateFactory.getInstance("X.509").generateCertificates(new ByteArrayInputStream(pem));
        if (found.isEmpty()) {
            throw new GeneralSecurityException("there is none");
        }
        return found;
    }

    private static PrivateKey key(byte[] pem) throws GeneralSecurityException {
        String body = new String(pem, StandardCharsets.US_ASCII).replaceAll("-----[A-Z ]+-----", "");
        PKCS8EncodedKeySpec spec =
                new PKCS8EncodedKeySpec(Base64.getMimeDecoder().decode(body));
        for (String kind : KINDS_OF_KEYS) {
            try {
                return KeyFactory.getInstance(kind).generatePrivate(spec);
            } catch (InvalidKeySpecException e) {
                // It is of another kind.
            }
        }
        throw new GeneralSecurityException("the key is no PKCS#8");
    }
}
