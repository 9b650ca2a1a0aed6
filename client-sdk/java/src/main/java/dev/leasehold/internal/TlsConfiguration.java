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

/** TLS settings of gRPC channels. The defaults of gRPC end at TLS 1.2, and brokers require TLS 1.3. */
final class TlsConfiguration {
    private static final String[] PROTOCOL_VERSIONS = {"TLSv1.3", "TLSv1.2"};
    /** Cipher suites of TLS 1.3, and those of TLS 1.2 that HTTP/2 allows, for proxies in front of brokers. */
    private static final String[] CIPHER_SUITES = {
        "TLS_AES_128_GCM_SHA256",
        "TLS_AES_256_GCM_SHA384",
        "TLS_CHACHA20_POLY1305_SHA256",
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    };

    private static final String[] KEY_ALGORITHMS = {"EC", "RSA", "Ed25519"};
    private static final char[] NO_PASSWORD = {};

    private TlsConfiguration() {}

    /** Configures a channel for TLS. Throws IllegalArgumentException if the certificates are invalid. */
    static OkHttpChannelBuilder configure(OkHttpChannelBuilder builder, Tls tls) {
        try {
            SSLContext context = SSLContext.getInstance("TLS");
            context.init(keyManagers(tls), trustManagers(tls), null);
            return builder.useTransportSecurity()
                    .sslSocketFactory(context.getSocketFactory())
                    .tlsConnectionSpec(PROTOCOL_VERSIONS, CIPHER_SUITES);
        } catch (GeneralSecurityException | IOException e) {
            throw new IllegalArgumentException("invalid TLS certificates or key: " + e.getMessage());
        }
    }

    private static TrustManager[] trustManagers(Tls tls) throws GeneralSecurityException, IOException {
        if (tls.ca() == null) {
            return null;
        }
        KeyStore store = emptyKeyStore();
        int number = 0;
        for (Certificate certificate : parseCertificates(tls.ca())) {
            store.setCertificateEntry("ca-" + number++, certificate);
        }
        TrustManagerFactory factory = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        factory.init(store);
        return factory.getTrustManagers();
    }

    private static KeyManager[] keyManagers(Tls tls) throws GeneralSecurityException, IOException {
        if (tls.certificate() == null) {
            return null;
        }
        KeyStore store = emptyKeyStore();
        Certificate[] chain = parseCertificates(tls.certificate()).toArray(new Certificate[0]);
        store.setKeyEntry("own", parsePrivateKey(tls.key()), NO_PASSWORD, chain);
        KeyManagerFactory factory = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        factory.init(store, NO_PASSWORD);
        return factory.getKeyManagers();
    }

    private static KeyStore emptyKeyStore() throws GeneralSecurityException, IOException {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, NO_PASSWORD);
        return store;
    }

    private static Collection<? extends Certificate> parseCertificates(byte[] pem) throws GeneralSecurityException {
        Collection<? extends Certificate> certificates =
                CertificateFactory.getInstance("X.509").generateCertificates(new ByteArrayInputStream(pem));
        if (certificates.isEmpty()) {
            throw new GeneralSecurityException("no certificate found in the PEM data");
        }
        return certificates;
    }

    private static PrivateKey parsePrivateKey(byte[] pem) throws GeneralSecurityException {
        String body = new String(pem, StandardCharsets.US_ASCII).replaceAll("-----[A-Z ]+-----", "");
        PKCS8EncodedKeySpec spec =
                new PKCS8EncodedKeySpec(Base64.getMimeDecoder().decode(body));
        for (String algorithm : KEY_ALGORITHMS) {
            try {
                return KeyFactory.getInstance(algorithm).generatePrivate(spec);
            } catch (InvalidKeySpecException e) {
                // The key has another algorithm.
            }
        }
        throw new GeneralSecurityException("the private key is not in PKCS#8 format");
    }
}
