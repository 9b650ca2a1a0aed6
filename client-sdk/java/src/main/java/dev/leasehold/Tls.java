package dev.leasehold;

/**
 * How https endpoints are trusted, and a certificate of this client's own, all in PEM.
 *
 * @param ca who signed the brokers' certificates; null: the root certificates of the Java runtime
 * @param certificate this client's certificate, where brokers ask for one, or null
 * @param key its private key as PKCS#8, or null
 * @param serverName the name in the brokers' certificates if it is not the endpoint's, or null
 */
public record Tls(byte[] ca, byte[] certificate, byte[] key, String serverName) {
    /** The root certificates of the Java runtime, and no certificate of this client's own. */
    public static final Tls DEFAULT = new Tls(null, null, null, null);

    /**
     * Trust in these.
     *
     * @param ca who signed the brokers' certificates
     * @return a copy
     */
    public Tls ca(byte[] ca) {
        return new Tls(ca, certificate, key, serverName);
    }

    /**
     * Shows a certificate.
     *
     * @param certificate this client's
     * @param key its private key as PKCS#8
     * @return a copy
     */
    public Tls certificate(byte[] certificate, byte[] key) {
        return new Tls(ca, certificate, key, serverName);
    }

    /**
     * Expects another name than the endpoint's.
     *
     * @param serverName the name in the brokers' certificates
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
