package dev.leasehold.v1;

import static io.grpc.MethodDescriptor.generateFullMethodName;

/**
 * <pre>
 * Takes, keeps and gives back locks.
 * </pre>
 */
@io.grpc.stub.annotations.GrpcGenerated
public final class LockServiceGrpc {

  private LockServiceGrpc() {}

  public static final java.lang.String SERVICE_NAME = "leasehold.v1.LockService";

  // Static method descriptors that strictly reflect the proto.
  private static volatile io.grpc.MethodDescriptor<dev.leasehold.v1.AcquireRequest,
      dev.leasehold.v1.AcquireResponse> getAcquireMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "Acquire",
      requestType = dev.leasehold.v1.AcquireRequest.class,
      responseType = dev.leasehold.v1.AcquireResponse.class,
      methodType = io.grpc.MethodDescriptor.MethodType.UNARY)
  public static io.grpc.MethodDescriptor<dev.leasehold.v1.AcquireRequest,
      dev.leasehold.v1.AcquireResponse> getAcquireMethod() {
    io.grpc.MethodDescriptor<dev.leasehold.v1.AcquireRequest, dev.leasehold.v1.AcquireResponse> getAcquireMethod;
    if ((getAcquireMethod = LockServiceGrpc.getAcquireMethod) == null) {
      synchronized (LockServiceGrpc.class) {
        if ((getAcquireMethod = LockServiceGrpc.getAcquireMethod) == null) {
          LockServiceGrpc.getAcquireMethod = getAcquireMethod =
              io.grpc.MethodDescriptor.<dev.leasehold.v1.AcquireRequest, dev.leasehold.v1.AcquireResponse>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.UNARY)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "Acquire"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.leasehold.v1.AcquireRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.leasehold.v1.AcquireResponse.getDefaultInstance()))
              .setSchemaDescriptor(new LockServiceMethodDescriptorSupplier("Acquire"))
              .build();
        }
      }
    }
    return getAcquireMethod;
  }

  private static volatile io.grpc.MethodDescriptor<dev.leasehold.v1.AcquireAllRequest,
      dev.leasehold.v1.AcquireAllResponse> getAcquireAllMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "AcquireAll",
      requestType = dev.leasehold.v1.AcquireAllRequest.class,
      responseType = dev.leasehold.v1.AcquireAllResponse.class,
      methodType = io.grpc.MethodDescriptor.MethodType.UNARY)
  public static io.grpc.MethodDescriptor<dev.leasehold.v1.AcquireAllRequest,
      dev.leasehold.v1.AcquireAllResponse> getAcquireAllMethod() {
    io.grpc.MethodDescriptor<dev.leasehold.v1.AcquireAllRequest, dev.leasehold.v1.AcquireAllResponse> getAcquireAllMethod;
    if ((getAcquireAllMethod = LockServiceGrpc.getAcquireAllMethod) == null) {
      synchronized (LockServiceGrpc.class) {
        if ((getAcquireAllMethod = LockServiceGrpc.getAcquireAllMethod) == null) {
          LockServiceGrpc.getAcquireAllMethod = getAcquireAllMethod =
              io.grpc.MethodDescriptor.<dev.leasehold.v1.AcquireAllRequest, dev.leasehold.v1.AcquireAllResponse>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.UNARY)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "AcquireAll"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.leasehold.v1.AcquireAllRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.leasehold.v1.AcquireAllResponse.getDefaultInstance()))
              .setSchemaDescriptor(new LockServiceMethodDescriptorSupplier("AcquireAll"))
              .build();
        }
      }
    }
    return getAcquireAllMethod;
  }

  private static volatile io.grpc.MethodDescriptor<dev.leasehold.v1.ReleaseRequest,
      dev.leasehold.v1.ReleaseResponse> getReleaseMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "Release",
      requestType = dev.leasehold.v1.ReleaseRequest.class,
      responseType = dev.leasehold.v1.ReleaseResponse.class,
      methodType = io.grpc.MethodDescriptor.MethodType.UNARY)
  public static io.grpc.MethodDescriptor<dev.leasehold.v1.ReleaseRequest,
      dev.leasehold.v1.ReleaseResponse> getReleaseMethod() {
    io.grpc.MethodDescriptor<dev.leasehold.v1.ReleaseRequest, dev.leasehold.v1.ReleaseResponse> getReleaseMethod;
    if ((getReleaseMethod = LockServiceGrpc.getReleaseMethod) == null) {
      synchronized (LockServiceGrpc.class) {
        if ((getReleaseMethod = LockServiceGrpc.getReleaseMethod) == null) {
          LockServiceGrpc.getReleaseMethod = getReleaseMethod =
              io.grpc.MethodDescriptor.<dev.leasehold.v1.ReleaseRequest, dev.leasehold.v1.ReleaseResponse>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.UNARY)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "Release"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.leasehold.v1.ReleaseRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.leasehold.v1.ReleaseResponse.getDefaultInstance()))
              .setSchemaDescriptor(new LockServiceMethodDescriptorSupplier("Release"))
              .build();
        }
      }
    }
    return getReleaseMethod;
  }

  private static volatile io.grpc.MethodDescriptor<dev.leasehold.v1.RenewRequest,
      dev.leasehold.v1.RenewResponse> getRenewMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "Renew",
      requestType = dev.leasehold.v1.RenewRequest.class,
      responseType = dev.leasehold.v1.RenewResponse.class,
      methodType = io.grpc.MethodDescriptor.MethodType.UNARY)
  public static io.grpc.MethodDescriptor<dev.leasehold.v1.RenewRequest,
      dev.leasehold.v1.RenewResponse> getRenewMethod() {
    io.grpc.MethodDescriptor<dev.leasehold.v1.RenewRequest, dev.leasehold.v1.RenewResponse> getRenewMethod;
    if ((getRenewMethod = LockServiceGrpc.getRenewMethod) == null) {
      synchronized (LockServiceGrpc.class) {
        if ((getRenewMethod = LockServiceGrpc.getRenewMethod) == null) {
          LockServiceGrpc.getRenewMethod = getRenewMethod =
              io.grpc.MethodDescriptor.<dev.leasehold.v1.RenewRequest, dev.leasehold.v1.RenewResponse>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.UNARY)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "Renew"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.leasehold.v1.RenewRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.leasehold.v1.RenewResponse.getDefaultInstance()))
              .setSchemaDescriptor(new LockServiceMethodDescriptorSupplier("Renew"))
              .build();
        }
      }
    }
    return getRenewMethod;
  }

  private static volatile io.grpc.MethodDescriptor<dev.leasehold.v1.HoldRequest,
      dev.leasehold.v1.HoldResponse> getHoldMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "Hold",
      requestType = dev.leasehold.v1.HoldRequest.class,
      responseType = dev.leasehold.v1.HoldResponse.class,
      methodType = io.grpc.MethodDescriptor.MethodType.BIDI_STREAMING)
  public static io.grpc.MethodDescriptor<dev.leasehold.v1.HoldRequest,
      dev.leasehold.v1.HoldResponse> getHoldMethod() {
    io.grpc.MethodDescriptor<dev.leasehold.v1.HoldRequest, dev.leasehold.v1.HoldResponse> getHoldMethod;
    if ((getHoldMethod = LockServiceGrpc.getHoldMethod) == null) {
      synchronized (LockServiceGrpc.class) {
        if ((getHoldMethod = LockServiceGrpc.getHoldMethod) == null) {
          LockServiceGrpc.getHoldMethod = getHoldMethod =
              io.grpc.MethodDescriptor.<dev.leasehold.v1.HoldRequest, dev.leasehold.v1.HoldResponse>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.BIDI_STREAMING)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "Hold"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.leasehold.v1.HoldRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.leasehold.v1.HoldResponse.getDefaultInstance()))
              .setSchemaDescriptor(new LockServiceMethodDescriptorSupplier("Hold"))
              .build();
        }
      }
    }
    return getHoldMethod;
  }

  private static volatile io.grpc.MethodDescriptor<dev.leasehold.v1.CheckFencingTokenRequest,
      dev.leasehold.v1.CheckFencingTokenResponse> getCheckFencingTokenMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "CheckFencingToken",
      requestType = dev.leasehold.v1.CheckFencingTokenRequest.class,
      responseType = dev.leasehold.v1.CheckFencingTokenResponse.class,
      methodType = io.grpc.MethodDescriptor.MethodType.UNARY)
  public static io.grpc.MethodDescriptor<dev.leasehold.v1.CheckFencingTokenRequest,
      dev.leasehold.v1.CheckFencingTokenResponse> getCheckFencingTokenMethod() {
    io.grpc.MethodDescriptor<dev.leasehold.v1.CheckFencingTokenRequest, dev.leasehold.v1.CheckFencingTokenResponse> getCheckFencingTokenMethod;
    if ((getCheckFencingTokenMethod = LockServiceGrpc.getCheckFencingTokenMethod) == null) {
      synchronized (LockServiceGrpc.class) {
        if ((getCheckFencingTokenMethod = LockServiceGrpc.getCheckFencingTokenMethod) == null) {
          LockServiceGrpc.getCheckFencingTokenMethod = getCheckFencingTokenMethod =
              io.grpc.MethodDescriptor.<dev.leasehold.v1.CheckFencingTokenRequest, dev.leasehold.v1.CheckFencingTokenResponse>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.UNARY)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "CheckFencingToken"))
              .setSafe(true)
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.leasehold.v1.CheckFencingTokenRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.leasehold.v1.CheckFencingTokenResponse.getDefaultInstance()))
              .setSchemaDescriptor(new LockServiceMethodDescriptorSupplier("CheckFencingToken"))
              .build();
        }
      }
    }
    return getCheckFencingTokenMethod;
  }

  /**
   * Creates a new async stub that supports all call types for the service
   */
  public static LockServiceStub newStub(io.grpc.Channel channel) {
    io.grpc.stub.AbstractStub.StubFactory<LockServiceStub> factory =
      new io.grpc.stub.AbstractStub.StubFactory<LockServiceStub>() {
        @java.lang.Override
        public LockServiceStub newStub(io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
          return new LockServiceStub(channel, callOptions);
        }
      };
    return LockServiceStub.newStub(factory, channel);
  }

  /**
   * Creates a new blocking-style stub that supports all types of calls on the service
   */
  public static LockServiceBlockingV2Stub newBlockingV2Stub(
      io.grpc.Channel channel) {
    io.grpc.stub.AbstractStub.StubFactory<LockServiceBlockingV2Stub> factory =
      new io.grpc.stub.AbstractStub.StubFactory<LockServiceBlockingV2Stub>() {
        @java.lang.Override
        public LockServiceBlockingV2Stub newStub(io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
          return new LockServiceBlockingV2Stub(channel, callOptions);
        }
      };
    return LockServiceBlockingV2Stub.newStub(factory, channel);
  }

  /**
   * Creates a new blocking-style stub that supports unary and streaming output calls on the service
   */
  public static LockServiceBlockingStub newBlockingStub(
      io.grpc.Channel channel) {
    io.grpc.stub.AbstractStub.StubFactory<LockServiceBlockingStub> factory =
      new io.grpc.stub.AbstractStub.StubFactory<LockServiceBlockingStub>() {
        @java.lang.Override
        public LockServiceBlockingStub newStub(io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
          return new LockServiceBlockingStub(channel, callOptions);
        }
      };
    return LockServiceBlockingStub.newStub(factory, channel);
  }

  /**
   * Creates a new ListenableFuture-style stub that supports unary calls on the service
   */
  public static LockServiceFutureStub newFutureStub(
      io.grpc.Channel channel) {
    io.grpc.stub.AbstractStub.StubFactory<LockServiceFutureStub> factory =
      new io.grpc.stub.AbstractStub.StubFactory<LockServiceFutureStub>() {
        @java.lang.Override
        public LockServiceFutureStub newStub(io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
          return new LockServiceFutureStub(channel, callOptions);
        }
      };
    return LockServiceFutureStub.newStub(factory, channel);
  }

  /**
   * <pre>
   * Takes, keeps and gives back locks.
   * </pre>
   */
  public interface AsyncService {

    /**
     * <pre>
     * Takes one lock, waiting in line at most wait_timeout. OK means held: every
     * other outcome is an error status, so a caller that forgets to look cannot
     * mistake "busy" for "mine".
     * </pre>
     */
    default void acquire(dev.leasehold.v1.AcquireRequest request,
        io.grpc.stub.StreamObserver<dev.leasehold.v1.AcquireResponse> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getAcquireMethod(), responseObserver);
    }

    /**
     * <pre>
     * Takes several locks, all or none, under one lease.
     * </pre>
     */
    default void acquireAll(dev.leasehold.v1.AcquireAllRequest request,
        io.grpc.stub.StreamObserver<dev.leasehold.v1.AcquireAllResponse> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getAcquireAllMethod(), responseObserver);
    }

    /**
     * <pre>
     * Gives back a lease, or one lock of it. Safe to repeat.
     * </pre>
     */
    default void release(dev.leasehold.v1.ReleaseRequest request,
        io.grpc.stub.StreamObserver<dev.leasehold.v1.ReleaseResponse> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getReleaseMethod(), responseObserver);
    }

    /**
     * <pre>
     * Extends a lease once. For clients that cannot keep a stream open.
     * </pre>
     */
    default void renew(dev.leasehold.v1.RenewRequest request,
        io.grpc.stub.StreamObserver<dev.leasehold.v1.RenewResponse> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getRenewMethod(), responseObserver);
    }

    /**
     * <pre>
     * The lease stream: acquire, wait in line, heartbeat, release and be told of
     * loss, all on one stream. Heartbeats renew its leases; Close releases them
     * at once; a stream that breaks, or ends without Close, stops renewing them:
     * they can be attached again on any replica until their time is over, then
     * the next in line gets the lock. One stream usually carries all leases of a
     * process: up to 1000.
     * </pre>
     */
    default io.grpc.stub.StreamObserver<dev.leasehold.v1.HoldRequest> hold(
        io.grpc.stub.StreamObserver<dev.leasehold.v1.HoldResponse> responseObserver) {
      return io.grpc.stub.ServerCalls.asyncUnimplementedStreamingCall(getHoldMethod(), responseObserver);
    }

    /**
     * <pre>
     * Tells whether a fencing token belongs to a live lease. For resources that
     * cannot compare tokens themselves, and for shared locks and semaphores.
     * </pre>
     */
    default void checkFencingToken(dev.leasehold.v1.CheckFencingTokenRequest request,
        io.grpc.stub.StreamObserver<dev.leasehold.v1.CheckFencingTokenResponse> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getCheckFencingTokenMethod(), responseObserver);
    }
  }

  /**
   * Base class for the server implementation of the service LockService.
   * <pre>
   * Takes, keeps and gives back locks.
   * </pre>
   */
  public static abstract class LockServiceImplBase
      implements io.grpc.BindableService, AsyncService {

    @java.lang.Override public final io.grpc.ServerServiceDefinition bindService() {
      return LockServiceGrpc.bindService(this);
    }
  }

  /**
   * A stub to allow clients to do asynchronous rpc calls to service LockService.
   * <pre>
   * Takes, keeps and gives back locks.
   * </pre>
   */
  public static final class LockServiceStub
      extends io.grpc.stub.AbstractAsyncStub<LockServiceStub> {
    private LockServiceStub(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      super(channel, callOptions);
    }

    @java.lang.Override
    protected LockServiceStub build(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      return new LockServiceStub(channel, callOptions);
    }

    /**
     * <pre>
     * Takes one lock, waiting in line at most wait_timeout. OK means held: every
     * other outcome is an error status, so a caller that forgets to look cannot
     * mistake "busy" for "mine".
     * </pre>
     */
    public void acquire(dev.leasehold.v1.AcquireRequest request,
        io.grpc.stub.StreamObserver<dev.leasehold.v1.AcquireResponse> responseObserver) {
      io.grpc.stub.ClientCalls.asyncUnaryCall(
          getChannel().newCall(getAcquireMethod(), getCallOptions()), request, responseObserver);
    }

    /**
     * <pre>
     * Takes several locks, all or none, under one lease.
     * </pre>
     */
    public void acquireAll(dev.leasehold.v1.AcquireAllRequest request,
        io.grpc.stub.StreamObserver<dev.leasehold.v1.AcquireAllResponse> responseObserver) {
      io.grpc.stub.ClientCalls.asyncUnaryCall(
          getChannel().newCall(getAcquireAllMethod(), getCallOptions()), request, responseObserver);
    }

    /**
     * <pre>
     * Gives back a lease, or one lock of it. Safe to repeat.
     * </pre>
     */
    public void release(dev.leasehold.v1.ReleaseRequest request,
        io.grpc.stub.StreamObserver<dev.leasehold.v1.ReleaseResponse> responseObserver) {
      io.grpc.stub.ClientCalls.asyncUnaryCall(
          getChannel().newCall(getReleaseMethod(), getCallOptions()), request, responseObserver);
    }

    /**
     * <pre>
     * Extends a lease once. For clients that cannot keep a stream open.
     * </pre>
     */
    public void renew(dev.leasehold.v1.RenewRequest request,
        io.grpc.stub.StreamObserver<dev.leasehold.v1.RenewResponse> responseObserver) {
      io.grpc.stub.ClientCalls.asyncUnaryCall(
          getChannel().newCall(getRenewMethod(), getCallOptions()), request, responseObserver);
    }

    /**
     * <pre>
     * The lease stream: acquire, wait in line, heartbeat, release and be told of
     * loss, all on one stream. Heartbeats renew its leases; Close releases them
     * at once; a stream that breaks, or ends without Close, stops renewing them:
     * they can be attached again on any replica until their time is over, then
     * the next in line gets the lock. One stream usually carries all leases of a
     * process: up to 1000.
     * </pre>
     */
    public io.grpc.stub.StreamObserver<dev.leasehold.v1.HoldRequest> hold(
        io.grpc.stub.StreamObserver<dev.leasehold.v1.HoldResponse> responseObserver) {
      return io.grpc.stub.ClientCalls.asyncBidiStreamingCall(
          getChannel().newCall(getHoldMethod(), getCallOptions()), responseObserver);
    }

    /**
     * <pre>
     * Tells whether a fencing token belongs to a live lease. For resources that
     * cannot compare tokens themselves, and for shared locks and semaphores.
     * </pre>
     */
    public void checkFencingToken(dev.leasehold.v1.CheckFencingTokenRequest request,
        io.grpc.stub.StreamObserver<dev.leasehold.v1.CheckFencingTokenResponse> responseObserver) {
      io.grpc.stub.ClientCalls.asyncUnaryCall(
          getChannel().newCall(getCheckFencingTokenMethod(), getCallOptions()), request, responseObserver);
    }
  }

  /**
   * A stub to allow clients to do synchronous rpc calls to service LockService.
   * <pre>
   * Takes, keeps and gives back locks.
   * </pre>
   */
  public static final class LockServiceBlockingV2Stub
      extends io.grpc.stub.AbstractBlockingStub<LockServiceBlockingV2Stub> {
    private LockServiceBlockingV2Stub(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      super(channel, callOptions);
    }

    @java.lang.Override
    protected LockServiceBlockingV2Stub build(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      return new LockServiceBlockingV2Stub(channel, callOptions);
    }

    /**
     * <pre>
     * Takes one lock, waiting in line at most wait_timeout. OK means held: every
     * other outcome is an error status, so a caller that forgets to look cannot
     * mistake "busy" for "mine".
     * </pre>
     */
    public dev.leasehold.v1.AcquireResponse acquire(dev.leasehold.v1.AcquireRequest request) throws io.grpc.StatusException {
      return io.grpc.stub.ClientCalls.blockingV2UnaryCall(
          getChannel(), getAcquireMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Takes several locks, all or none, under one lease.
     * </pre>
     */
    public dev.leasehold.v1.AcquireAllResponse acquireAll(dev.leasehold.v1.AcquireAllRequest request) throws io.grpc.StatusException {
      return io.grpc.stub.ClientCalls.blockingV2UnaryCall(
          getChannel(), getAcquireAllMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Gives back a lease, or one lock of it. Safe to repeat.
     * </pre>
     */
    public dev.leasehold.v1.ReleaseResponse release(dev.leasehold.v1.ReleaseRequest request) throws io.grpc.StatusException {
      return io.grpc.stub.ClientCalls.blockingV2UnaryCall(
          getChannel(), getReleaseMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Extends a lease once. For clients that cannot keep a stream open.
     * </pre>
     */
    public dev.leasehold.v1.RenewResponse renew(dev.leasehold.v1.RenewRequest request) throws io.grpc.StatusException {
      return io.grpc.stub.ClientCalls.blockingV2UnaryCall(
          getChannel(), getRenewMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * The lease stream: acquire, wait in line, heartbeat, release and be told of
     * loss, all on one stream. Heartbeats renew its leases; Close releases them
     * at once; a stream that breaks, or ends without Close, stops renewing them:
     * they can be attached again on any replica until their time is over, then
     * the next in line gets the lock. One stream usually carries all leases of a
     * process: up to 1000.
     * </pre>
     */
    @io.grpc.ExperimentalApi("https://github.com/grpc/grpc-java/issues/10918")
    public io.grpc.stub.BlockingClientCall<dev.leasehold.v1.HoldRequest, dev.leasehold.v1.HoldResponse>
        hold() {
      return io.grpc.stub.ClientCalls.blockingBidiStreamingCall(
          getChannel(), getHoldMethod(), getCallOptions());
    }

    /**
     * <pre>
     * Tells whether a fencing token belongs to a live lease. For resources that
     * cannot compare tokens themselves, and for shared locks and semaphores.
     * </pre>
     */
    public dev.leasehold.v1.CheckFencingTokenResponse checkFencingToken(dev.leasehold.v1.CheckFencingTokenRequest request) throws io.grpc.StatusException {
      return io.grpc.stub.ClientCalls.blockingV2UnaryCall(
          getChannel(), getCheckFencingTokenMethod(), getCallOptions(), request);
    }
  }

  /**
   * A stub to allow clients to do limited synchronous rpc calls to service LockService.
   * <pre>
   * Takes, keeps and gives back locks.
   * </pre>
   */
  public static final class LockServiceBlockingStub
      extends io.grpc.stub.AbstractBlockingStub<LockServiceBlockingStub> {
    private LockServiceBlockingStub(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      super(channel, callOptions);
    }

    @java.lang.Override
    protected LockServiceBlockingStub build(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      return new LockServiceBlockingStub(channel, callOptions);
    }

    /**
     * <pre>
     * Takes one lock, waiting in line at most wait_timeout. OK means held: every
     * other outcome is an error status, so a caller that forgets to look cannot
     * mistake "busy" for "mine".
     * </pre>
     */
    public dev.leasehold.v1.AcquireResponse acquire(dev.leasehold.v1.AcquireRequest request) {
      return io.grpc.stub.ClientCalls.blockingUnaryCall(
          getChannel(), getAcquireMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Takes several locks, all or none, under one lease.
     * </pre>
     */
    public dev.leasehold.v1.AcquireAllResponse acquireAll(dev.leasehold.v1.AcquireAllRequest request) {
      return io.grpc.stub.ClientCalls.blockingUnaryCall(
          getChannel(), getAcquireAllMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Gives back a lease, or one lock of it. Safe to repeat.
     * </pre>
     */
    public dev.leasehold.v1.ReleaseResponse release(dev.leasehold.v1.ReleaseRequest request) {
      return io.grpc.stub.ClientCalls.blockingUnaryCall(
          getChannel(), getReleaseMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Extends a lease once. For clients that cannot keep a stream open.
     * </pre>
     */
    public dev.leasehold.v1.RenewResponse renew(dev.leasehold.v1.RenewRequest request) {
      return io.grpc.stub.ClientCalls.blockingUnaryCall(
          getChannel(), getRenewMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Tells whether a fencing token belongs to a live lease. For resources that
     * cannot compare tokens themselves, and for shared locks and semaphores.
     * </pre>
     */
    public dev.leasehold.v1.CheckFencingTokenResponse checkFencingToken(dev.leasehold.v1.CheckFencingTokenRequest request) {
      return io.grpc.stub.ClientCalls.blockingUnaryCall(
          getChannel(), getCheckFencingTokenMethod(), getCallOptions(), request);
    }
  }

  /**
   * A stub to allow clients to do ListenableFuture-style rpc calls to service LockService.
   * <pre>
   * Takes, keeps and gives back locks.
   * </pre>
   */
  public static final class LockServiceFutureStub
      extends io.grpc.stub.AbstractFutureStub<LockServiceFutureStub> {
    private LockServiceFutureStub(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      super(channel, callOptions);
    }

    @java.lang.Override
    protected LockServiceFutureStub build(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      return new LockServiceFutureStub(channel, callOptions);
    }

    /**
     * <pre>
     * Takes one lock, waiting in line at most wait_timeout. OK means held: every
     * other outcome is an error status, so a caller that forgets to look cannot
     * mistake "busy" for "mine".
     * </pre>
     */
    public com.google.common.util.concurrent.ListenableFuture<dev.leasehold.v1.AcquireResponse> acquire(
        dev.leasehold.v1.AcquireRequest request) {
      return io.grpc.stub.ClientCalls.futureUnaryCall(
          getChannel().newCall(getAcquireMethod(), getCallOptions()), request);
    }

    /**
     * <pre>
     * Takes several locks, all or none, under one lease.
     * </pre>
     */
    public com.google.common.util.concurrent.ListenableFuture<dev.leasehold.v1.AcquireAllResponse> acquireAll(
        dev.leasehold.v1.AcquireAllRequest request) {
      return io.grpc.stub.ClientCalls.futureUnaryCall(
          getChannel().newCall(getAcquireAllMethod(), getCallOptions()), request);
    }

    /**
     * <pre>
     * Gives back a lease, or one lock of it. Safe to repeat.
     * </pre>
     */
    public com.google.common.util.concurrent.ListenableFuture<dev.leasehold.v1.ReleaseResponse> release(
        dev.leasehold.v1.ReleaseRequest request) {
      return io.grpc.stub.ClientCalls.futureUnaryCall(
          getChannel().newCall(getReleaseMethod(), getCallOptions()), request);
    }

    /**
     * <pre>
     * Extends a lease once. For clients that cannot keep a stream open.
     * </pre>
     */
    public com.google.common.util.concurrent.ListenableFuture<dev.leasehold.v1.RenewResponse> renew(
        dev.leasehold.v1.RenewRequest request) {
      return io.grpc.stub.ClientCalls.futureUnaryCall(
          getChannel().newCall(getRenewMethod(), getCallOptions()), request);
    }

    /**
     * <pre>
     * Tells whether a fencing token belongs to a live lease. For resources that
     * cannot compare tokens themselves, and for shared locks and semaphores.
     * </pre>
     */
    public com.google.common.util.concurrent.ListenableFuture<dev.leasehold.v1.CheckFencingTokenResponse> checkFencingToken(
        dev.leasehold.v1.CheckFencingTokenRequest request) {
      return io.grpc.stub.ClientCalls.futureUnaryCall(
          getChannel().newCall(getCheckFencingTokenMethod(), getCallOptions()), request);
    }
  }

  private static final int METHODID_ACQUIRE = 0;
  private static final int METHODID_ACQUIRE_ALL = 1;
  private static final int METHODID_RELEASE = 2;
  private static final int METHODID_RENEW = 3;
  private static final int METHODID_CHECK_FENCING_TOKEN = 4;
  private static final int METHODID_HOLD = 5;

  private static final class MethodHandlers<Req, Resp> implements
      io.grpc.stub.ServerCalls.UnaryMethod<Req, Resp>,
      io.grpc.stub.ServerCalls.ServerStreamingMethod<Req, Resp>,
      io.grpc.stub.ServerCalls.ClientStreamingMethod<Req, Resp>,
      io.grpc.stub.ServerCalls.BidiStreamingMethod<Req, Resp> {
    private final AsyncService serviceImpl;
    private final int methodId;

    MethodHandlers(AsyncService serviceImpl, int methodId) {
      this.serviceImpl = serviceImpl;
      this.methodId = methodId;
    }

    @java.lang.Override
    @java.lang.SuppressWarnings("unchecked")
    public void invoke(Req request, io.grpc.stub.StreamObserver<Resp> responseObserver) {
      switch (methodId) {
        case METHODID_ACQUIRE:
          serviceImpl.acquire((dev.leasehold.v1.AcquireRequest) request,
              (io.grpc.stub.StreamObserver<dev.leasehold.v1.AcquireResponse>) responseObserver);
          break;
        case METHODID_ACQUIRE_ALL:
          serviceImpl.acquireAll((dev.leasehold.v1.AcquireAllRequest) request,
              (io.grpc.stub.StreamObserver<dev.leasehold.v1.AcquireAllResponse>) responseObserver);
          break;
        case METHODID_RELEASE:
          serviceImpl.release((dev.leasehold.v1.ReleaseRequest) request,
              (io.grpc.stub.StreamObserver<dev.leasehold.v1.ReleaseResponse>) responseObserver);
          break;
        case METHODID_RENEW:
          serviceImpl.renew((dev.leasehold.v1.RenewRequest) request,
              (io.grpc.stub.StreamObserver<dev.leasehold.v1.RenewResponse>) responseObserver);
          break;
        case METHODID_CHECK_FENCING_TOKEN:
          serviceImpl.checkFencingToken((dev.leasehold.v1.CheckFencingTokenRequest) request,
              (io.grpc.stub.StreamObserver<dev.leasehold.v1.CheckFencingTokenResponse>) responseObserver);
          break;
        default:
          throw new AssertionError();
      }
    }

    @java.lang.Override
    @java.lang.SuppressWarnings("unchecked")
    public io.grpc.stub.StreamObserver<Req> invoke(
        io.grpc.stub.StreamObserver<Resp> responseObserver) {
      switch (methodId) {
        case METHODID_HOLD:
          return (io.grpc.stub.StreamObserver<Req>) serviceImpl.hold(
              (io.grpc.stub.StreamObserver<dev.leasehold.v1.HoldResponse>) responseObserver);
        default:
          throw new AssertionError();
      }
    }
  }

  public static final io.grpc.ServerServiceDefinition bindService(AsyncService service) {
    return io.grpc.ServerServiceDefinition.builder(getServiceDescriptor())
        .addMethod(
          getAcquireMethod(),
          io.grpc.stub.ServerCalls.asyncUnaryCall(
            new MethodHandlers<
              dev.leasehold.v1.AcquireRequest,
              dev.leasehold.v1.AcquireResponse>(
                service, METHODID_ACQUIRE)))
        .addMethod(
          getAcquireAllMethod(),
          io.grpc.stub.ServerCalls.asyncUnaryCall(
            new MethodHandlers<
              dev.leasehold.v1.AcquireAllRequest,
              dev.leasehold.v1.AcquireAllResponse>(
                service, METHODID_ACQUIRE_ALL)))
        .addMethod(
          getReleaseMethod(),
          io.grpc.stub.ServerCalls.asyncUnaryCall(
            new MethodHandlers<
              dev.leasehold.v1.ReleaseRequest,
              dev.leasehold.v1.ReleaseResponse>(
                service, METHODID_RELEASE)))
        .addMethod(
          getRenewMethod(),
          io.grpc.stub.ServerCalls.asyncUnaryCall(
            new MethodHandlers<
              dev.leasehold.v1.RenewRequest,
              dev.leasehold.v1.RenewResponse>(
                service, METHODID_RENEW)))
        .addMethod(
          getHoldMethod(),
          io.grpc.stub.ServerCalls.asyncBidiStreamingCall(
            new MethodHandlers<
              dev.leasehold.v1.HoldRequest,
              dev.leasehold.v1.HoldResponse>(
                service, METHODID_HOLD)))
        .addMethod(
          getCheckFencingTokenMethod(),
          io.grpc.stub.ServerCalls.asyncUnaryCall(
            new MethodHandlers<
              dev.leasehold.v1.CheckFencingTokenRequest,
              dev.leasehold.v1.CheckFencingTokenResponse>(
                service, METHODID_CHECK_FENCING_TOKEN)))
        .build();
  }

  private static abstract class LockServiceBaseDescriptorSupplier
      implements io.grpc.protobuf.ProtoFileDescriptorSupplier, io.grpc.protobuf.ProtoServiceDescriptorSupplier {
    LockServiceBaseDescriptorSupplier() {}

    @java.lang.Override
    public com.google.protobuf.Descriptors.FileDescriptor getFileDescriptor() {
      return dev.leasehold.v1.LockServiceProto.getDescriptor();
    }

    @java.lang.Override
    public com.google.protobuf.Descriptors.ServiceDescriptor getServiceDescriptor() {
      return getFileDescriptor().findServiceByName("LockService");
    }
  }

  private static final class LockServiceFileDescriptorSupplier
      extends LockServiceBaseDescriptorSupplier {
    LockServiceFileDescriptorSupplier() {}
  }

  private static final class LockServiceMethodDescriptorSupplier
      extends LockServiceBaseDescriptorSupplier
      implements io.grpc.protobuf.ProtoMethodDescriptorSupplier {
    private final java.lang.String methodName;

    LockServiceMethodDescriptorSupplier(java.lang.String methodName) {
      this.methodName = methodName;
    }

    @java.lang.Override
    public com.google.protobuf.Descriptors.MethodDescriptor getMethodDescriptor() {
      return getServiceDescriptor().findMethodByName(methodName);
    }
  }

  private static volatile io.grpc.ServiceDescriptor serviceDescriptor;

  public static io.grpc.ServiceDescriptor getServiceDescriptor() {
    io.grpc.ServiceDescriptor result = serviceDescriptor;
    if (result == null) {
      synchronized (LockServiceGrpc.class) {
        result = serviceDescriptor;
        if (result == null) {
          serviceDescriptor = result = io.grpc.ServiceDescriptor.newBuilder(SERVICE_NAME)
              .setSchemaDescriptor(new LockServiceFileDescriptorSupplier())
              .addMethod(getAcquireMethod())
              .addMethod(getAcquireAllMethod())
              .addMethod(getReleaseMethod())
              .addMethod(getRenewMethod())
              .addMethod(getHoldMethod())
              .addMethod(getCheckFencingTokenMethod())
              .build();
        }
      }
    }
    return result;
  }
}
