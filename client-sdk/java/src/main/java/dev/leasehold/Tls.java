package dev.leasehold;

/**
 * TLS settings for https endpoints: trusted authorities and an optional client certificate, all in PEM.
 *
 * @param ca certificates of the authorities that signed the brokers' certificates; null: the root certificates of the
 *     Java runtime
 * @param certificate certificate of this client if brokers require one, or null
 * @param key private key of the client certificate as PKCS#8, or null
 * @param serverName the name in the brokers' certificates if it differs from the endpoint's, or null
 */
public record Tls(byte[] ca, byte[] certificate, byte[] key, String serverName) {
    /** Default settings: the root certificates of the Java runtime, no client certificate. */
    public static final Tls DEFAULT = new Tls(null, null, null, null);

    /**
     * Sets the certificates of the trusted authorities.
     *
     * @param ca certificates of the authorities that signed the brokers' certificates
     * @return a copy
     */
    public Tls ca(byte[] ca) {
        return new Tls(ca, certificate, key, serverName);
    }

    /**
     * Sets the client certificate.
     *
     * @param certificate certificate of this client
     * @param key private key of the client certificate as PKCS#8
     * @return a copy
     */
    public Tls certificate(byte[] certificate, byte[] key) {
        return new Tls(ca, certificate, key, serverName);
    }

    /**
     * Sets the name that is expected in the brokers' certificates.
     *
     * @param serverName the name if it differs from the endpoint's
     * @return a copy
     */
    public Tls serverName(String serverName) {
        return new Tls(ca, certificate, key, serverName);
    }

    @Override
    public String toString() {
        return "Tls[serverName=" + serverName + "]";
    }
}
