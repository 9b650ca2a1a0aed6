package dev.leasehold.v1;

import static io.grpc.MethodDescriptor.generateFullMethodName;

/**
 * <pre>
 * Shows locks, holders and queues.
 * </pre>
 */
@io.grpc.stub.annotations.GrpcGenerated
public final class InspectionServiceGrpc {

  private InspectionServiceGrpc() {}

  public static final java.lang.String SERVICE_NAME = "leasehold.v1.InspectionService";

  // Static method descriptors that strictly reflect the proto.
  private static volatile io.grpc.MethodDescriptor<dev.leasehold.v1.GetLockRequest,
      dev.leasehold.v1.GetLockResponse> getGetLockMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "GetLock",
      requestType = dev.leasehold.v1.GetLockRequest.class,
      responseType = dev.leasehold.v1.GetLockResponse.class,
      methodType = io.grpc.MethodDescriptor.MethodType.UNARY)
  public static io.grpc.MethodDescriptor<dev.leasehold.v1.GetLockRequest,
      dev.leasehold.v1.GetLockResponse> getGetLockMethod() {
    io.grpc.MethodDescriptor<dev.leasehold.v1.GetLockRequest, dev.leasehold.v1.GetLockResponse> getGetLockMethod;
    if ((getGetLockMethod = InspectionServiceGrpc.getGetLockMethod) == null) {
      synchronized (InspectionServiceGrpc.class) {
        if ((getGetLockMethod = InspectionServiceGrpc.getGetLockMethod) == null) {
          InspectionServiceGrpc.getGetLockMethod = getGetLockMethod =
              io.grpc.MethodDescriptor.<dev.leasehold.v1.GetLockRequest, dev.leasehold.v1.GetLockResponse>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.UNARY)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "GetLock"))
              .setSafe(true)
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.leasehold.v1.GetLockRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.leasehold.v1.GetLockResponse.getDefaultInstance()))
              .setSchemaDescriptor(new InspectionServiceMethodDescriptorSupplier("GetLock"))
              .build();
        }
      }
    }
    return getGetLockMethod;
  }

  private static volatile io.grpc.MethodDescriptor<dev.leasehold.v1.ListLocksRequest,
      dev.leasehold.v1.ListLocksResponse> getListLocksMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "ListLocks",
      requestType = dev.leasehold.v1.ListLocksRequest.class,
      responseType = dev.leasehold.v1.ListLocksResponse.class,
      methodType = io.grpc.MethodDescriptor.MethodType.UNARY)
  public static io.grpc.MethodDescriptor<dev.leasehold.v1.ListLocksRequest,
      dev.leasehold.v1.ListLocksResponse> getListLocksMethod() {
    io.grpc.MethodDescriptor<dev.leasehold.v1.ListLocksRequest, dev.leasehold.v1.ListLocksResponse> getListLocksMethod;
    if ((getListLocksMethod = InspectionServiceGrpc.getListLocksMethod) == null) {
      synchronized (InspectionServiceGrpc.class) {
        if ((getListLocksMethod = InspectionServiceGrpc.getListLocksMethod) == null) {
          InspectionServiceGrpc.getListLocksMethod = getListLocksMethod =
              io.grpc.MethodDescriptor.<dev.leasehold.v1.ListLocksRequest, dev.leasehold.v1.ListLocksResponse>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.UNARY)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "ListLocks"))
              .setSafe(true)
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.leasehold.v1.ListLocksRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.leasehold.v1.ListLocksResponse.getDefaultInstance()))
              .setSchemaDescriptor(new InspectionServiceMethodDescriptorSupplier("ListLocks"))
              .build();
        }
      }
    }
    return getListLocksMethod;
  }

  private static volatile io.grpc.MethodDescriptor<dev.leasehold.v1.WatchLocksRequest,
      dev.leasehold.v1.WatchLocksResponse> getWatchLocksMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "WatchLocks",
      requestType = dev.leasehold.v1.WatchLocksRequest.class,
      responseType = dev.leasehold.v1.WatchLocksResponse.class,
      methodType = io.grpc.MethodDescriptor.MethodType.SERVER_STREAMING)
  public static io.grpc.MethodDescriptor<dev.leasehold.v1.WatchLocksRequest,
      dev.leasehold.v1.WatchLocksResponse> getWatchLocksMethod() {
    io.grpc.MethodDescriptor<dev.leasehold.v1.WatchLocksRequest, dev.leasehold.v1.WatchLocksResponse> getWatchLocksMethod;
    if ((getWatchLocksMethod = InspectionServiceGrpc.getWatchLocksMethod) == null) {
      synchronized (InspectionServiceGrpc.class) {
        if ((getWatchLocksMethod = InspectionServiceGrpc.getWatchLocksMethod) == null) {
          InspectionServiceGrpc.getWatchLocksMethod = getWatchLocksMethod =
              io.grpc.MethodDescriptor.<dev.leasehold.v1.WatchLocksRequest, dev.leasehold.v1.WatchLocksResponse>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.SERVER_STREAMING)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "WatchLocks"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.leasehold.v1.WatchLocksRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  dev.leasehold.v1.WatchLocksResponse.getDefaultInstance()))
              .setSchemaDescriptor(new InspectionServiceMethodDescriptorSupplier("WatchLocks"))
              .build();
        }
      }
    }
    return getWatchLocksMethod;
  }

  /**
   * Creates a new async stub that supports all call types for the service
   */
  public static InspectionServiceStub newStub(io.grpc.Channel channel) {
    io.grpc.stub.AbstractStub.StubFactory<InspectionServiceStub> factory =
      new io.grpc.stub.AbstractStub.StubFactory<InspectionServiceStub>() {
        @java.lang.Override
        public InspectionServiceStub newStub(io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
          return new InspectionServiceStub(channel, callOptions);
        }
      };
    return InspectionServiceStub.newStub(factory, channel);
  }

  /**
   * Creates a new blocking-style stub that supports all types of calls on the service
   */
  public static InspectionServiceBlockingV2Stub newBlockingV2Stub(
      io.grpc.Channel channel) {
    io.grpc.stub.AbstractStub.StubFactory<InspectionServiceBlockingV2Stub> factory =
      new io.grpc.stub.AbstractStub.StubFactory<InspectionServiceBlockingV2Stub>() {
        @java.lang.Override
        public InspectionServiceBlockingV2Stub newStub(io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
          return new InspectionServiceBlockingV2Stub(channel, callOptions);
        }
      };
    return InspectionServiceBlockingV2Stub.newStub(factory, channel);
  }

  /**
   * Creates a new blocking-style stub that supports unary and streaming output calls on the service
   */
  public static InspectionServiceBlockingStub newBlockingStub(
      io.grpc.Channel channel) {
    io.grpc.stub.AbstractStub.StubFactory<InspectionServiceBlockingStub> factory =
      new io.grpc.stub.AbstractStub.StubFactory<InspectionServiceBlockingStub>() {
        @java.lang.Override
        public InspectionServiceBlockingStub newStub(io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
          return new InspectionServiceBlockingStub(channel, callOptions);
        }
      };
    return InspectionServiceBlockingStub.newStub(factory, channel);
  }

  /**
   * Creates a new ListenableFuture-style stub that supports unary calls on the service
   */
  public static InspectionServiceFutureStub newFutureStub(
      io.grpc.Channel channel) {
    io.grpc.stub.AbstractStub.StubFactory<InspectionServiceFutureStub> factory =
      new io.grpc.stub.AbstractStub.StubFactory<InspectionServiceFutureStub>() {
        @java.lang.Override
        public InspectionServiceFutureStub newStub(io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
          return new InspectionServiceFutureStub(channel, callOptions);
        }
      };
    return InspectionServiceFutureStub.newStub(factory, channel);
  }

  /**
   * <pre>
   * Shows locks, holders and queues.
   * </pre>
   */
  public interface AsyncService {

    /**
     * <pre>
     * One lock. A lock nobody holds or waits for is NOT_FOUND.
     * </pre>
     */
    default void getLock(dev.leasehold.v1.GetLockRequest request,
        io.grpc.stub.StreamObserver<dev.leasehold.v1.GetLockResponse> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getGetLockMethod(), responseObserver);
    }

    /**
     * <pre>
     * Locks that are held or waited for, or closed by lock_delay.
     * </pre>
     */
    default void listLocks(dev.leasehold.v1.ListLocksRequest request,
        io.grpc.stub.StreamObserver<dev.leasehold.v1.ListLocksResponse> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getListLocksMethod(), responseObserver);
    }

    /**
     * <pre>
     * Changes, as they happen. Best effort: a gap is told, not filled.
     * </pre>
     */
    default void watchLocks(dev.leasehold.v1.WatchLocksRequest request,
        io.grpc.stub.StreamObserver<dev.leasehold.v1.WatchLocksResponse> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getWatchLocksMethod(), responseObserver);
    }
  }

  /**
   * Base class for the server implementation of the service InspectionService.
   * <pre>
   * Shows locks, holders and queues.
   * </pre>
   */
  public static abstract class InspectionServiceImplBase
      implements io.grpc.BindableService, AsyncService {

    @java.lang.Override public final io.grpc.ServerServiceDefinition bindService() {
      return InspectionServiceGrpc.bindService(this);
    }
  }

  /**
   * A stub to allow clients to do asynchronous rpc calls to service InspectionService.
   * <pre>
   * Shows locks, holders and queues.
   * </pre>
   */
  public static final class InspectionServiceStub
      extends io.grpc.stub.AbstractAsyncStub<InspectionServiceStub> {
    private InspectionServiceStub(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      super(channel, callOptions);
    }

    @java.lang.Override
    protected InspectionServiceStub build(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      return new InspectionServiceStub(channel, callOptions);
    }

    /**
     * <pre>
     * One lock. A lock nobody holds or waits for is NOT_FOUND.
     * </pre>
     */
    public void getLock(dev.leasehold.v1.GetLockRequest request,
        io.grpc.stub.StreamObserver<dev.leasehold.v1.GetLockResponse> responseObserver) {
      io.grpc.stub.ClientCalls.asyncUnaryCall(
          getChannel().newCall(getGetLockMethod(), getCallOptions()), request, responseObserver);
    }

    /**
     * <pre>
     * Locks that are held or waited for, or closed by lock_delay.
     * </pre>
     */
    public void listLocks(dev.leasehold.v1.ListLocksRequest request,
        io.grpc.stub.StreamObserver<dev.leasehold.v1.ListLocksResponse> responseObserver) {
      io.grpc.stub.ClientCalls.asyncUnaryCall(
          getChannel().newCall(getListLocksMethod(), getCallOptions()), request, responseObserver);
    }

    /**
     * <pre>
     * Changes, as they happen. Best effort: a gap is told, not filled.
     * </pre>
     */
    public void watchLocks(dev.leasehold.v1.WatchLocksRequest request,
        io.grpc.stub.StreamObserver<dev.leasehold.v1.WatchLocksResponse> responseObserver) {
      io.grpc.stub.ClientCalls.asyncServerStreamingCall(
          getChannel().newCall(getWatchLocksMethod(), getCallOptions()), request, responseObserver);
    }
  }

  /**
   * A stub to allow clients to do synchronous rpc calls to service InspectionService.
   * <pre>
   * Shows locks, holders and queues.
   * </pre>
   */
  public static final class InspectionServiceBlockingV2Stub
      extends io.grpc.stub.AbstractBlockingStub<InspectionServiceBlockingV2Stub> {
    private InspectionServiceBlockingV2Stub(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      super(channel, callOptions);
    }

    @java.lang.Override
    protected InspectionServiceBlockingV2Stub build(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      return new InspectionServiceBlockingV2Stub(channel, callOptions);
    }

    /**
     * <pre>
     * One lock. A lock nobody holds or waits for is NOT_FOUND.
     * </pre>
     */
    public dev.leasehold.v1.GetLockResponse getLock(dev.leasehold.v1.GetLockRequest request) throws io.grpc.StatusException {
      return io.grpc.stub.ClientCalls.blockingV2UnaryCall(
          getChannel(), getGetLockMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Locks that are held or waited for, or closed by lock_delay.
     * </pre>
     */
    public dev.leasehold.v1.ListLocksResponse listLocks(dev.leasehold.v1.ListLocksRequest request) throws io.grpc.StatusException {
      return io.grpc.stub.ClientCalls.blockingV2UnaryCall(
          getChannel(), getListLocksMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Changes, as they happen. Best effort: a gap is told, not filled.
     * </pre>
     */
    @io.grpc.ExperimentalApi("https://github.com/grpc/grpc-java/issues/10918")
    public io.grpc.stub.BlockingClientCall<?, dev.leasehold.v1.WatchLocksResponse>
        watchLocks(dev.leasehold.v1.WatchLocksRequest request) {
      return io.grpc.stub.ClientCalls.blockingV2ServerStreamingCall(
          getChannel(), getWatchLocksMethod(), getCallOptions(), request);
    }
  }

  /**
   * A stub to allow clients to do limited synchronous rpc calls to service InspectionService.
   * <pre>
   * Shows locks, holders and queues.
   * </pre>
   */
  public static final class InspectionServiceBlockingStub
      extends io.grpc.stub.AbstractBlockingStub<InspectionServiceBlockingStub> {
    private InspectionServiceBlockingStub(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      super(channel, callOptions);
    }

    @java.lang.Override
    protected InspectionServiceBlockingStub build(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      return new InspectionServiceBlockingStub(channel, callOptions);
    }

    /**
     * <pre>
     * One lock. A lock nobody holds or waits for is NOT_FOUND.
     * </pre>
     */
    public dev.leasehold.v1.GetLockResponse getLock(dev.leasehold.v1.GetLockRequest request) {
      return io.grpc.stub.ClientCalls.blockingUnaryCall(
          getChannel(), getGetLockMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Locks that are held or waited for, or closed by lock_delay.
     * </pre>
     */
    public dev.leasehold.v1.ListLocksResponse listLocks(dev.leasehold.v1.ListLocksRequest request) {
      return io.grpc.stub.ClientCalls.blockingUnaryCall(
          getChannel(), getListLocksMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Changes, as they happen. Best effort: a gap is told, not filled.
     * </pre>
     */
    public java.util.Iterator<dev.leasehold.v1.WatchLocksResponse> watchLocks(
        dev.leasehold.v1.WatchLocksRequest request) {
      return io.grpc.stub.ClientCalls.blockingServerStreamingCall(
          getChannel(), getWatchLocksMethod(), getCallOptions(), request);
    }
  }

  /**
   * A stub to allow clients to do ListenableFuture-style rpc calls to service InspectionService.
   * <pre>
   * Shows locks, holders and queues.
   * </pre>
   */
  public static final class InspectionServiceFutureStub
      extends io.grpc.stub.AbstractFutureStub<InspectionServiceFutureStub> {
    private InspectionServiceFutureStub(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      super(channel, callOptions);
    }

    @java.lang.Override
    protected InspectionServiceFutureStub build(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      return new InspectionServiceFutureStub(channel, callOptions);
    }

    /**
     * <pre>
     * One lock. A lock nobody holds or waits for is NOT_FOUND.
     * </pre>
     */
    public com.google.common.util.concurrent.ListenableFuture<dev.leasehold.v1.GetLockResponse> getLock(
        dev.leasehold.v1.GetLockRequest request) {
      return io.grpc.stub.ClientCalls.futureUnaryCall(
          getChannel().newCall(getGetLockMethod(), getCallOptions()), request);
    }

    /**
     * <pre>
     * Locks that are held or waited for, or closed by lock_delay.
     * </pre>
     */
    public com.google.common.util.concurrent.ListenableFuture<dev.leasehold.v1.ListLocksResponse> listLocks(
        dev.leasehold.v1.ListLocksRequest request) {
      return io.grpc.stub.ClientCalls.futureUnaryCall(
          getChannel().newCall(getListLocksMethod(), getCallOptions()), request);
    }
  }

  private static final int METHODID_GET_LOCK = 0;
  private static final int METHODID_LIST_LOCKS = 1;
  private static final int METHODID_WATCH_LOCKS = 2;

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
        case METHODID_GET_LOCK:
          serviceImpl.getLock((dev.leasehold.v1.GetLockRequest) request,
              (io.grpc.stub.StreamObserver<dev.leasehold.v1.GetLockResponse>) responseObserver);
          break;
        case METHODID_LIST_LOCKS:
          serviceImpl.listLocks((dev.leasehold.v1.ListLocksRequest) request,
              (io.grpc.stub.StreamObserver<dev.leasehold.v1.ListLocksResponse>) responseObserver);
          break;
        case METHODID_WATCH_LOCKS:
          serviceImpl.watchLocks((dev.leasehold.v1.WatchLocksRequest) request,
              (io.grpc.stub.StreamObserver<dev.leasehold.v1.WatchLocksResponse>) responseObserver);
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
        default:
          throw new AssertionError();
      }
    }
  }

  public static final io.grpc.ServerServiceDefinition bindService(AsyncService service) {
    return io.grpc.ServerServiceDefinition.builder(getServiceDescriptor())
        .addMethod(
          getGetLockMethod(),
          io.grpc.stub.ServerCalls.asyncUnaryCall(
            new MethodHandlers<
              dev.leasehold.v1.GetLockRequest,
              dev.leasehold.v1.GetLockResponse>(
                service, METHODID_GET_LOCK)))
        .addMethod(
          getListLocksMethod(),
          io.grpc.stub.ServerCalls.asyncUnaryCall(
            new MethodHandlers<
              dev.leasehold.v1.ListLocksRequest,
              dev.leasehold.v1.ListLocksResponse>(
                service, METHODID_LIST_LOCKS)))
        .addMethod(
          getWatchLocksMethod(),
          io.grpc.stub.ServerCalls.asyncServerStreamingCall(
            new MethodHandlers<
              dev.leasehold.v1.WatchLocksRequest,
              dev.leasehold.v1.WatchLocksResponse>(
                service, METHODID_WATCH_LOCKS)))
        .build();
  }

  private static abstract class InspectionServiceBaseDescriptorSupplier
      implements io.grpc.protobuf.ProtoFileDescriptorSupplier, io.grpc.protobuf.ProtoServiceDescriptorSupplier {
    InspectionServiceBaseDescriptorSupplier() {}

    @java.lang.Override
    public com.google.protobuf.Descriptors.FileDescriptor getFileDescriptor() {
      return dev.leasehold.v1.InspectionServiceProto.getDescriptor();
    }

    @java.lang.Override
    public com.google.protobuf.Descriptors.ServiceDescriptor getServiceDescriptor() {
      return getFileDescriptor().findServiceByName("InspectionService");
    }
  }

  private static final class InspectionServiceFileDescriptorSupplier
      extends InspectionServiceBaseDescriptorSupplier {
    InspectionServiceFileDescriptorSupplier() {}
  }

  private static final class InspectionServiceMethodDescriptorSupplier
      extends InspectionServiceBaseDescriptorSupplier
      implements io.grpc.protobuf.ProtoMethodDescriptorSupplier {
    private final java.lang.String methodName;

    InspectionServiceMethodDescriptorSupplier(java.lang.String methodName) {
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
      synchronized (InspectionServiceGrpc.class) {
        result = serviceDescriptor;
        if (result == null) {
          serviceDescriptor = result = io.grpc.ServiceDescriptor.newBuilder(SERVICE_NAME)
              .setSchemaDescriptor(new InspectionServiceFileDescriptorSupplier())
              .addMethod(getGetLockMethod())
              .addMethod(getListLocksMethod())
              .addMethod(getWatchLocksMethod())
              .build();
        }
      }
    }
    return result;
  }
}
