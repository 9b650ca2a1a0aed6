// Many callers of two clients contend for few locks while connections are cut and brokers are killed. No two callers
// hold a lock at the same time, and tokens rise.

package leasehold_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"leasehold.dev/sdk"
	"leasehold.dev/sdk/internal/clock"
	"leasehold.dev/sdk/internal/testbed"
)

const (
	lockCount   = 3
	callerCount = 12
	// durationMin is the minimum duration, and durationMax the maximum one if too little has happened until then.
	durationMin = 10 * time.Second
	durationMax = 30 * time.Second
	periodsMin  = 50
	// recoveryTimeout covers the state that the faults leave behind where a connection broke at the moment of a cancel or
	// a release: a lease until it expires, then a queue position for 6 s, and a hand-off to a killed broker for 3 s.
	recoveryTimeout = 15 * time.Second
)

// holdPeriod is a period in which a caller relied on a lock.
type holdPeriod struct {
	lock               int
	token              int64
	startedAt, endedAt time.Duration
}

// oracle records all hold periods, and checks them for mutual exclusion.
type oracle struct {
	mu      sync.Mutex
	periods []holdPeriod
}

func (o *oracle) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.periods)
}

func (o *oracle) record(period holdPeriod) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.periods = append(o.periods, period)
}

// violations returns the number of periods that overlap the previous period of the lock, and the number of periods
// whose token is not larger than that of the previous period.
func (o *oracle) violations() (overlaps, regressions int) {
	slices.SortFunc(o.periods, func(first, second holdPeriod) int {
		return cmp.Or(cmp.Compare(first.lock, second.lock), cmp.Compare(first.startedAt, second.startedAt))
	})
	for i := 1; i < len(o.periods); i++ {
		earlier, later := o.periods[i-1], o.periods[i]
		if earlier.lock != later.lock {
			continue
		}
		if later.startedAt < earlier.endedAt {
			overlaps++
		}
		if later.token <= earlier.token {
			regressions++
		}
	}
	return overlaps, regressions
}

func TestTheOracleDetectsViolations(t *testing.T) {
	o := &oracle{periods: []holdPeriod{{0, 1, 0, 2}, {0, 2, 1, 3}, {0, 2, 4, 5}, {1, 1, 0, 9}}}
	overlaps, regressions := o.violations()
	assert(t, overlaps == 1 && regressions == 1, "%d, %d", overlaps, regressions)
}

func TestMutualExclusionHoldsUnderFaults(t *testing.T) {
	t.Parallel()
	brokers := twoBrokers(t)
	proxies := []*testbed.Proxy{startProxy(t, brokers[0]), startProxy(t, brokers[1])}
	clients := []*leasehold.Client{
		clientOf(t, proxies[0].URL()+","+proxies[1].URL()), clientOf(t, proxies[1].URL()+","+proxies[0].URL()),
	}
	o, start := &oracle{}, clock.Now()
	ctx, end := context.WithCancel(t.Context())
	defer end()
	var calls sync.WaitGroup
	for caller := range callerCount {
		calls.Go(func() {
			for ctx.Err() == nil {
				if err := o.holdOnce(t.Context(), clients[caller%2]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	cuts, kills := 0, 0
	isComplete := func() bool {
		passed := clock.Now() - start
		return passed > durationMax || passed > durationMin && kills > 0 && o.count() >= periodsMin
	}
	for !isComplete() {
		time.Sleep(300*time.Millisecond + rand.N(500*time.Millisecond))
		cuts += proxies[rand.N(2)].CloseConnections()
		if rand.N(10) < 3 {
			kills++
			ok(t, brokers[rand.N(2)].Restart())
		}
	}
	end()
	calls.Wait()
	overlaps, regressions := o.violations()
	t.Logf("periods=%d cuts=%d kills=%d overlaps=%d regressions=%d", len(o.periods), cuts, kills, overlaps, regressions)
	assert(t, cuts > 0 && kills > 0 && len(o.periods) >= periodsMin, "too few faults or hold periods")
	assert(t, overlaps == 0 && regressions == 0, "%d overlaps, %d regressions", overlaps, regressions)
	for number := range lockCount {
		release(t, lock(t, clients[0], fmt.Sprint(number), leasehold.WithWait(recoveryTimeout)))
	}
}

// holdOnce acquires a lock and relies on it for a while. Some calls are cancelled.
func (o *oracle) holdOnce(ctx context.Context, client *leasehold.Client) error {
	ctx, cancel := context.WithTimeout(ctx, rand.N(5*time.Second))
	defer cancel()
	number := rand.N(lockCount)
	lease, err := client.Lock(ctx, fmt.Sprint(number), leasehold.WithTTL(3*time.Second))
	if err == nil {
		period := holdPeriod{lock: number, token: lease.FencingToken(), startedAt: clock.Now()}
		until := period.startedAt + rand.N(50*time.Millisecond)
		for period.endedAt = period.startedAt; period.endedAt < until; time.Sleep(time.Millisecond) {
			now := clock.Now()
			if !lease.IsValid() {
				break
			}
			period.endedAt = now
		}
		o.record(period)
		err = lease.Release(context.WithoutCancel(ctx))
	}
	for _, expected := range []error{
		context.DeadlineExceeded, leasehold.ErrUnavailable, leasehold.ErrLeaseLost, leasehold.ErrUnconfirmed,
	} {
		if errors.Is(err, expected) {
			return nil
		}
	}
	return err
}
