package dev.leasehold.support;

import java.io.IOException;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.regex.Pattern;

/** A redis-server without persistence, on a free port and with a temporary folder. */
public final class Redis implements AutoCloseable {
    private static final Pattern READY_LINE = Pattern.compile("Ready to accept connections");

    private final int port = Program.freePort();
    private final Path dir;
    private final Program program;

    /** Starts the server. */
    public Redis() throws IOException, InterruptedException {
        dir = Files.createTempDirectory("leasehold-redis-");
        String server = System.getenv().getOrDefault("STORE_SERVER", "redis-server");
        String portText = Integer.toString(port);
        program = new Program(
                List.of(server, "--port", portText, "--bind", "127.0.0.1", "--save", "", "--dir", dir.toString()));
        program.awaitLine(READY_LINE);
    }

    public int port() {
        return port;
    }

    /** Returns the URL of the server, for a broker's store. */
    public String url() {
        return "redis://127.0.0.1:" + port + "/0";
    }

    public Program program() {
        return program;
    }

    /** Runs an inline command, and returns the beginning of the response. */
    public String command(String line) throws IOException {
        try (Socket connection = new Socket("127.0.0.1", port)) {
            connection.getOutputStream().write((line + "\r\n").getBytes(StandardCharsets.UTF_8));
            byte[] response = new byte[4_096];
            return new String(response, 0, connection.getInputStream().read(response), StandardCharsets.UTF_8).strip();
        }
    }

    @Override
    public void close() throws IOException {
        program.close();
        Files.deleteIfExists(dir);
    }
}
