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

/**
 * A TCP proxy in front of a broker, which can cut connections, drop, delay or hold back data, reject connections, and
 * record all traffic.
 */
public final class Proxy implements AutoCloseable {
    private final int brokerPort;
    private final ServerSocket server;
    private final List<Socket> openSockets = new CopyOnWriteArrayList<>();
    private final AtomicLong droppedBytes = new AtomicLong();
    private final AtomicInteger connectionCount = new AtomicInteger();
    private final ByteArrayOutputStream traffic = new ByteArrayOutputStream();

    private volatile boolean dropsToBroker;
    private volatile boolean dropsToClient;
    private volatile boolean rejectsConnections;
    private volatile long delayMillis;
    private final Object holdBackMonitor = new Object();
    private boolean holdsBack;

    /** Starts the proxy on a free port. */
    public Proxy(Broker broker) throws IOException {
        this.brokerPort = broker.port();
        server = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        daemonThread(this::serve).start();
    }

    private static Thread daemonThread(Runnable task) {
        Thread thread = new Thread(task, "proxy");
        thread.setDaemon(true);
        return thread;
    }

    /** Returns the URL of the proxy. */
    public String url() {
        return "http://127.0.0.1:" + server.getLocalPort();
    }

    /** Drops data in the named directions, while connections stay open. */
    public void dropData(boolean toBroker, boolean toClient) {
        dropsToBroker = toBroker;
        dropsToClient = toClient;
    }

    /** Delays data of the broker by {@code millis}. */
    public void delay(long millis) {
        delayMillis = millis;
    }

    /** Holds back data of the broker until the next call with {@code false}. */
    public void holdBack(boolean holdsBack) {
        synchronized (holdBackMonitor) {
            this.holdsBack = holdsBack;
            holdBackMonitor.notifyAll();
        }
    }

    /** Sets whether new connections are closed immediately. */
    public void rejectConnections(boolean rejects) {
        this.rejectsConnections = rejects;
    }

    /** Closes all connections. */
    public void closeConnections() {
        List.copyOf(openSockets).forEach(this::closeSocket);
    }

    /** Returns the number of dropped bytes. */
    public long droppedBytes() {
        return droppedBytes.get();
    }

    /** Returns the number of connections that were opened. */
    public int connectionCount() {
        return connectionCount.get();
    }

    /** Returns all forwarded data, decoded as ISO 8859-1. */
    public String traffic() {
        synchronized (traffic) {
            return traffic.toString(StandardCharsets.ISO_8859_1);
        }
    }

    private void serve() {
        while (!server.isClosed()) {
            try {
                Socket clientSocket = server.accept();
                connectionCount.incrementAndGet();
                if (rejectsConnections) {
                    closeSocket(clientSocket);
                } else {
                    connect(clientSocket, new Socket(InetAddress.getLoopbackAddress(), brokerPort));
                }
            } catch (IOException e) {
                // Connecting to a broker that is down failed, or this proxy was closed.
            }
        }
    }

    private void connect(Socket clientSocket, Socket brokerSocket) throws IOException {
        clientSocket.setTcpNoDelay(true);
        brokerSocket.setTcpNoDelay(true);
        openSockets.addAll(List.of(clientSocket, brokerSocket));
        daemonThread(() -> forward(clientSocket, brokerSocket, true)).start();
        daemonThread(() -> forward(brokerSocket, clientSocket, false)).start();
    }

    private void forward(Socket from, Socket to, boolean toBroker) {
        byte[] buffer = new byte[65_536];
        // A single thread keeps delayed data in order.
        ExecutorService writer = Executors.newSingleThreadExecutor(Proxy::daemonThread);
        try {
            InputStream input = from.getInputStream();
            for (int length = input.read(buffer); length >= 0; length = input.read(buffer)) {
                byte[] data = Arrays.copyOf(buffer, length);
                if (toBroker ? dropsToBroker : dropsToClient) {
                    droppedBytes.addAndGet(length);
                } else {
                    long writeAt = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(toBroker ? 0 : delayMillis);
                    writer.execute(() -> {
                        if (!toBroker) {
                            awaitRelease();
                        }
                        write(data, to, writeAt);
                    });
                }
            }
        } catch (IOException e) {
            // The connection was closed.
        }
        writer.shutdown();
        if (!dropsToBroker && !dropsToClient) {
            closeSocket(from);
            closeSocket(to);
        }
    }

    private void awaitRelease() {
        synchronized (holdBackMonitor) {
            while (holdsBack) {
                try {
                    holdBackMonitor.wait();
                } catch (InterruptedException e) {
                    Thread.currentThread().interrupt();
                    return;
                }
            }
        }
    }

    private void write(byte[] data, Socket to, long writeAt) {
        LockSupport.parkNanos(writeAt - System.nanoTime());
        synchronized (traffic) {
            traffic.writeBytes(data);
        }
        try {
            OutputStream output = to.getOutputStream();
            output.write(data);
            output.flush();
        } catch (IOException e) {
            closeSocket(to);
        }
    }

    private void closeSocket(Socket socket) {
        openSockets.remove(socket);
        try {
            socket.setSoLinger(true, 0);
            socket.close();
        } catch (IOException e) {
            // The connection is closed already.
        }
    }

    @Override
    public void close() {
        try {
            server.close();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        closeConnections();
    }
}
