package dev.leasehold.support;

import java.io.IOException;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.regex.Pattern;

/** One redis-server without persistence, on a port and in a folder of its own. */
public final class Redis implements AutoCloseable {
    private static final Pattern READY = Pattern.compile("Ready to accept connections");

    private final int port = Program.freePort();
    private final Path dir;
    private final Program program;

    /** Starts it. */
    public Redis() throws IOException, InterruptedException {
        dir = Files.createTempDirectory("leasehold-redis-");
        String server = System.getenv().getOrDefault("STORE_SERVER", "redis-server");
        String number = Integer.toString(port);
        program = new Program(
                List.of(server, "--port", number, "--bind", "127.0.0.1", "--save", "", "--dir", dir.toString()));
        program.line(READY);
    }

    public int port() {
        return port;
    }

    /** As a broker's store. */
    public String url() {
        return "redis://127.0.0.1:" + port + "/0";
    }

    public Program program() {
        return program;
    }

    /** Runs a command by hand; the beginning of the answer. */
    public String command(String line) throws IOException {
        try (Socket connection = new Socket("127.0.0.1", port)) {
            connection.getOutputStream().write((line + "\r\n").getBytes(StandardCharsets.UTF_8));
            byte[] answer = new byte[4_096];
            return new String(answer, 0, connection.getInputStream().read(answer), StandardCharsets.UTF_8).strip();
        }
    }

    @Override
    public void close() throws IOException {
        program.close();
        Files.deleteIfExists(dir);
    }
}
