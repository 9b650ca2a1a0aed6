// A client's streams, who looks at the time for them, and how they end.

package leasehold

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "leasehold.dev/sdk/gen/leasehold/v1"
	"leasehold.dev/sdk/internal/clock"
)

const (
	// streamLeasesMax is how many leases and waits of one stream the broker allows.
	streamLeasesMax = 1_000
	// tickEvery is how often the time is looked at while there are leases or waits: no timer runs through a suspend.
	tickEvery = 50 * time.Millisecond
	// closeLimit is how long a close waits for brokers.
	closeLimit = 2 * time.Second
)

// core is what a client and its leases share.
type core struct {
	brokers *brokers
	logger  *slog.Logger
	metrics metrics

	// mu is for everything below, and for all keepers. Nobody waits for the network while it is locked.
	mu        sync.Mutex
	keepers   []*keeper
	isWatched bool
	isClosed  bool
	// ended is closed when the keepers have ended; ending are those that have not.
	ended         chan struct{}
	ending        int
	isUnconfirmed bool
}

func (c *core) log() *slog.Logger {
	if c.logger != nil {
		return c.logger
	}
	return slog.Default()
}

// watch has the time looked at until nothing is left for which it matters.
func (c *core) watch() {
	if c.isWatched {
		return
	}
	c.isWatched = true
	go func() {
		ticker := time.NewTicker(tickEvery)
		defer ticker.Stop()
		for c.tick() {
			<-ticker.C
		}
	}()
}

func (c *core) tick() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isWatched = false
	for _, keeper := range c.keepers {
		keeper.tick(clock.Now())
		c.isWatched = c.isWatched || !keeper.isIdle()
	}
	return c.isWatched
}

// keeper is one with room for so many leases or waits more.
func (c *core) keeper(more int) *keeper {
	for _, keeper := range c.keepers {
		if keeper.load()+more <= streamLeasesMax {
			return keeper
		}
	}
	keeper := newKeeper(c)
	c.keepers = append(c.keepers, keeper)
	return keeper
}

// acquire takes locks, and keeps their lease. What it returns gives the call up.
func (c *core) acquire(asked *ask) (cancel func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed {
		asked.answer <- answer{err: failed(ErrClosed, "")}
		return func() {}
	}
	keeper := c.keeper(1)
	if asked.under != nil {
		keeper = asked.under.keeper
	}
	keeper.waits.ask(asked)
	return func() { keeper.core.cancel(keeper, asked) }
}

// cancel: the caller is gone. What it has got is given back.
func (c *core) cancel(keeper *keeper, asked *ask) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case got := <-asked.answer:
		if got.grip != nil {
			got.grip.giveBack()
		}
	default:
		keeper.waits.cancel(asked.call.requestID)
	}
}

// connect waits until a broker answers.
func (c *core) connect(ctx context.Context) (*keeper, error) {
	c.mu.Lock()
	if c.isClosed {
		c.mu.Unlock()
		return nil, failed(ErrClosed, "")
	}
	keeper := c.keeper(0)
	told := keeper.moves.waitFirst()
	c.mu.Unlock()
	select {
	case err := <-told:
		return keeper, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// look looks at a lock. Nothing: nobody holds it or waits for it.
func (c *core) look(ctx context.Context, lock lockName) (*pb.Lock, error) {
	keeper, err := c.connect(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	c.mu.Lock()
	link := keeper.link
	why := failed(ErrUnavailable, keeper.moves.whyNot())
	c.mu.Unlock()
	if link == nil {
		return nil, why
	}
	credential, err := c.brokers.source.now()
	if err != nil {
		return nil, failed(ErrUnavailable, err.Error())
	}
	limited, cancel := context.WithTimeout(shown(ctx, credential), callLimit)
	defer cancel()
	request := &pb.GetLockRequest{Namespace: lock.namespace, Name: lock.name}
	response, err := pb.NewInspectionServiceClient(link.conn).GetLock(limited, request, grpc.WaitForReady(false))
	switch {
	case err == nil:
		return response.GetLock(), nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case status.Code(err) == codes.NotFound:
		return nil, nil
	}
	said := statusOf(err)
	if isOpen(said) && said.GetReason() == pb.ErrorReason_ERROR_REASON_UNSPECIFIED {
		return nil, failed(ErrUnavailable, said.GetMessage())
	}
	return nil, refusalOf(said)
}

// unavailable: who does not ask for a connection, but for something of a broker, is told so.
func unavailable(err error) error {
	var why *Error
	switch {
	case !errors.As(err, &why):
	case why.Err == ErrUnreachable:
		return failed(ErrUnavailable, why.Message)
	case why.Err == ErrCredentialRefused:
		return failed(ErrUnauthenticated, why.Message)
	}
	return err
}

// close gives up every wait, releases every lease, and ends. False: some broker has not confirmed that.
func (c *core) close() bool {
	c.mu.Lock()
	if !c.isClosed {
		// A call that comes now must not make another keeper, which nobody would close.
		c.isClosed = true
		c.ended = make(chan struct{})
		c.ending = len(c.keepers) + 1
		by := clock.Now() + closeLimit
		for _, keeper := range c.keepers {
			keeper.close(by, c.keeperEnded)
		}
		c.watch()
		c.keeperEnded(true)
	}
	c.mu.Unlock()
	<-c.ended
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.isUnconfirmed
}

func (c *core) keeperEnded(isClosed bool) {
	c.isUnconfirmed = c.isUnconfirmed || !isClosed
	c.ending--
	if c.ending == 0 {
		close(c.ended)
	}
}
