package dev.leasehold.support;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;

/** A TCP proxy before a broker: it cuts, swallows, delays, holds back, refuses and remembers. */
public final class Proxy implements AutoCloseable {
    private final int broker;
    private final ServerSocket server;
    private final List<Socket> open = new CopyOnWriteArrayList<>();
    private final AtomicLong lost = new AtomicLong();
    private final AtomicInteger opened = new AtomicInteger();
    private final ByteArrayOutputStream said = new ByteArrayOutputStream();

    private volatile boolean swallowsToBroker;
    private volatile boolean swallowsToClient;
    private volatile boolean refuses;
    private volatile long delayMillis;
    private final Object gate = new Object();
    private boolean holdsBack;

    /** Serves until it is closed. */
    public Proxy(Broker broker) throws IOException {
        this.broker = broker.port();
        server = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        daemon(this::serve).start();
    }

    private static Thread daemon(Runnable what) {
        Thread thread = new Thread(what, "proxy");
        thread.setDaemon(true);
        return thread;
    }

    /** As an endpoint. */
    public String url() {
        return "http://127.0.0.1:" + server.getLocalPort();
    }

    /** Loses what is sent that way, while connections stay open. */
    public void swallow(boolean toBroker, boolean toClient) {
        swallowsToBroker = toBroker;
        swallowsToClient = toClient;
    }

    /** Keeps what the broker says for so long. */
    public void delay(long millis) {
        delayMillis = millis;
    }

    /** Keeps what the broker says until it is called with {@code false}. */
    public void holdBack(boolean holdsBack) {
        synchronized (gate) {
            this.holdsBack = holdsBack;
            gate.notifyAll();
        }
    }

    /** Closes new connections at once. */
    public void refuse(boolean refuses) {
        this.refuses = refuses;
    }

    /** Breaks every connection. */
    public void cut() {
        List.copyOf(open).forEach(this::end);
    }

    /** How many bytes were swallowed. */
    public long lost() {
        return lost.get();
    }

    /** How many connections were opened. */
    public int opened() {
        return opened.get();
    }

    /** All that has passed, as text where it is text. */
    public String said() {
        synchronized (said) {
            return said.toString(StandardCharsets.ISO_8859_1);
        }
    }

    private void serve() {
        while (!server.isClosed()) {
            try {
                Socket client = server.accept();
                opened.incrementAndGet();
                if (refuses) {
                    end(client);
                } else {
                    join(client, new Socket(InetAddress.getLoopbackAddress(), broker));
                }
            } catch (IOException e) {
                // Of the broker, which is away, or of this proxy, which is closed.
            }
        }
    }

    private void join(Socket client, Socket far) throws IOException {
        client.setTcpNoDelay(true);
        far.setTcpNoDelay(true);
        open.addAll(List.of(client, far));
        daemon(() -> pump(client, far, true)).start();
        daemon(() -> pump(far, client, false)).start();
    }

    private void pump(Socket from, Socket to, boolean toBroker) {
        byte[] buffer = new byte[65_536];
        // Whatever was delayed stays in its order.
        ExecutorService late = Executors.newSingleThreadExecutor(Proxy::daemon);
        try {
            InputStream input = from.getInputStream();
            for (int length = input.read(buffer); length >= 0; length = input.read(buffer)) {
                byte[] data = Arrays.copyOf(buffer, length);
                if (toBroker ? swallowsToBroker : swallowsToClient) {
                    lost.addAndGet(length);
                } else {
                    long due = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(toBroker ? 0 : delayMillis);
                    late.execute(() -> {
                        if (!toBroker) {
                            awaitPassage();
                        }
                        write(data, to, due);
                    });
                }
            }
        } catch (IOException e) {
            // Cut.
        }
        late.shutdown();
        if (!swallowsToBroker && !swallowsToClient) {
            end(from);
            end(to);
        }
    }

    private void awaitPassage() {
        synchronized (gate) {
            while (holdsBack) {
                try {
                    gate.wait();
                } catch (InterruptedException e) {
                    Thread.currentThread().interrupt();
                    return;
                }
            }
        }
    }

    private void write(byte[] data, Socket to, long due) {
        LockSupport.parkNanos(due - System.nanoTime());
        synchronized (said) {
            said.writeBytes(data);
        }
        try {
            OutputStream output = to.getOutputStream();
            output.write(data);
            output.flush();
        } catch (IOException e) {
            end(to);
        }
    }

    private void end(Socket one) {
        open.remove(one);
        try {
            one.setSoLinger(true, 0);
            one.close();
        } catch (IOException e) {
            // It is gone.
        }
    }

    @Override
    public void close() {
        try {
            server.close();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        cut();
    }
}
