package idempotency_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"math"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/idempotency"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
	"spendhook/internal/seal/sealtest"
	"spendhook/internal/waittest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

var (
	one    = sha256.Sum256([]byte("POST /a"))
	other  = sha256.Sum256([]byte("POST /b"))
	answer = idempotency.Response{
		Status: http.StatusCreated,
		Header: http.Header{"Location": {"/a/1"}},
		Body:   []byte("{\"bytes\":\"\x00\xff\"}"),
	}
)

func TestAnAnsweredRequestIsRepeated(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	if err := claim(t, s, one).Finish(t.Context(), answer); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, got, err := s.Begin(t.Context(), of(one))
		if err != nil || !cmp.Equal(got, &answer) {
			t.Errorf("Begin again: %v, %s", err, cmp.Diff(&answer, got))
		}
	}
	if _, _, err := s.Begin(t.Context(), of(other)); !errors.Is(err, idempotency.ErrReused) {
		t.Errorf("another request: %v, want ErrReused", err)
	}
	for _, ttl := range ttls(t, c) { // of the answer, and of the company's bytes
		if ttl < 23*time.Hour || ttl > 24*time.Hour {
			t.Errorf("the answer is kept %v, want 24 h", ttl)
		}
	}
}

func TestARunningRequestHoldsItsKeyForAShortTime(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	claim(t, s, one)
	if _, _, err := s.Begin(t.Context(), of(one)); !errors.Is(err, idempotency.ErrInProgress) {
		t.Errorf("Begin while it runs: %v, want ErrInProgress", err)
	}
	if _, _, err := s.Begin(t.Context(), of(other)); !errors.Is(err, idempotency.ErrReused) {
		t.Errorf("another request while it runs: %v, want ErrReused", err)
	}
	for _, ttl := range ttls(t, c) {
		if ttl <= 0 || ttl > time.Minute {
			t.Errorf("a crashed request would block its key for %v", ttl)
		}
	}
}

func TestAnAbortedKeyIsFree(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	if err := claim(t, s, one).Abort(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(ttls(t, c)); n != 0 {
		t.Errorf("%d keys are left after Abort", n)
	}
	claim(t, s, other)
}

func TestALateRequestDoesNotDisturbTheNextOne(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	late := claim(t, s, one)
	c.FlushDB(t.Context()) // the claim ran out
	claim(t, s, other)
	if err := late.Finish(t.Context(), answer); err != nil {
		t.Fatal(err)
	}
	if err := late.Abort(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Begin(t.Context(), of(other)); !errors.Is(err, idempotency.ErrInProgress) {
		t.Errorf("the second request's claim: %v, want ErrInProgress", err)
	}
}

func TestTheFirstAnswerStays(t *testing.T) {
	t.Parallel()
	s, _ := setup(t)
	first := claim(t, s, one)
	for _, status := range []int{http.StatusCreated, http.StatusTeapot} {
		if err := first.Finish(t.Context(), idempotency.Response{Status: status}); err != nil {
			t.Fatal(err)
		}
	}
	if err := first.Abort(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, got, err := s.Begin(t.Context(), of(one))
	if err != nil || got == nil || got.Status != http.StatusCreated {
		t.Errorf("Begin = %v, %v, want the first answer", got, err)
	}
}

func TestOneOfManyConcurrentRequestsRuns(t *testing.T) {
	t.Parallel()
	s, _ := setup(t)
	var claimed atomic.Int64
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			mine, _, err := s.Begin(t.Context(), of(one))
			if err == nil && mine != nil {
				claimed.Add(1)
			} else if !errors.Is(err, idempotency.ErrInProgress) {
				t.Errorf("Begin: %v, want ErrInProgress", err)
			}
		})
	}
	wg.Wait()
	if n := claimed.Load(); n != 1 {
		t.Errorf("%d requests run, want 1", n)
	}
}

func TestScopesAreIndependent(t *testing.T) {
	t.Parallel()
	s, _ := setup(t)
	claim(t, s, one)
	elsewhere, theirs := of(other), of(other)
	elsewhere.Scope, theirs.Company = "another", uuid.New()
	for _, r := range []idempotency.Request{elsewhere, theirs} {
		if mine, saved, err := s.Begin(t.Context(), r); mine == nil || saved != nil || err != nil {
			t.Errorf("the same key in another scope or company: %v, %v", saved, err)
		}
	}
}

func setup(t *testing.T) (*idempotency.Store, redis.UniversalClient) {
	t.Helper()
	c := redistest.New(t)
	s := idempotency.New(c, sealtest.Keyring(), nil)
	t.Cleanup(s.Close)
	return s, c
}

var company = uuid.New()

func of(fingerprint [32]byte) idempotency.Request {
	return idempotency.Request{Company: company, Scope: "s", Key: "k", Fingerprint: fingerprint}
}

func claim(t *testing.T, s *idempotency.Store, fingerprint [32]byte) *idempotency.Claim {
	t.Helper()
	mine, saved, err := s.Begin(t.Context(), of(fingerprint))
	if mine == nil || saved != nil || err != nil {
		t.Fatalf("Begin: %v, %v, want a claim", saved, err)
	}
	return mine
}

// lossy repeats each command once, as a client does that has lost the reply.
type lossy struct{}

func (lossy) DialHook(next redis.DialHook) redis.DialHook { return next }

func (lossy) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		_ = next(ctx, cmd)
		return next(ctx, cmd)
	}
}

func (lossy) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestALostReplyDoesNotBlockTheKey(t *testing.T) {
	t.Parallel()
	c, memory := redistest.New(t), &budget{admit: math.MaxInt64, free: math.MaxInt64}
	s := idempotency.New(c, nil, memory)
	t.Cleanup(s.Close)
	c.AddHook(lossy{})
	if err := claim(t, s, one).Finish(t.Context(), answer); err != nil || memory.released != 0 {
		t.Fatalf("%v, %d bytes released of an answer that is kept", err, memory.released)
	}
	if _, got, err := s.Begin(t.Context(), of(one)); err != nil || !cmp.Equal(got, &answer) {
		t.Errorf("%v, %s", err, cmp.Diff(&answer, got))
	}
}

// errLost is an error of the connection, after which nobody knows what Redis has done.
var errLost = errors.New("connection lost")

// interrupted loses the connection in the next n commands of a client: before Redis gets them, or after it has
// carried them out. Failed counts them.
type interrupted struct {
	n, failed atomic.Int64
	after     bool
}

func (i *interrupted) hook() redistest.Hook {
	return redistest.Hook{Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if i.n.Add(-1) < 0 {
			return next(ctx, cmd)
		}
		if i.after {
			_ = next(ctx, cmd)
		}
		i.failed.Add(1)
		cmd.SetErr(errLost)
		return errLost
	}}
}

// A request that was answered while Redis did not answer is not in progress until its claim expires, and is
// not carried out again.
func TestWhatRedisMissedIsDoneLater(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]bool{"the call is lost": false, "the reply is lost": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, memory, lost := redistest.New(t), &budget{admit: math.MaxInt64, free: math.MaxInt64}, &interrupted{after: after}
			s := idempotency.New(c, nil, memory)
			t.Cleanup(s.Close)
			c.AddHook(lost.hook())
			mine := claim(t, s, one)
			lost.n.Store(2)
			if err := mine.Finish(t.Context(), answer); !errors.Is(err, errLost) {
				t.Fatalf("Finish: %v, want %v", err, errLost)
			}
			waittest.Until(t, "the answer is kept", func() bool {
				_, got, err := s.Begin(t.Context(), of(one))
				return err == nil && cmp.Equal(got, &answer)
			})
			s.Close()
			if memory.reservations != 1 || memory.released != 0 {
				t.Errorf("reserved %d times, %d bytes released", memory.reservations, memory.released)
			}
		})
		t.Run("abort: "+name, func(t *testing.T) {
			t.Parallel()
			s, c := setup(t)
			lost := &interrupted{after: after}
			c.AddHook(lost.hook())
			mine := claim(t, s, one)
			persist(t, c)
			lost.n.Store(2)
			if err := mine.Abort(t.Context()); !errors.Is(err, errLost) {
				t.Fatalf("Abort: %v, want %v", err, errLost)
			}
			free(t, s)
		})
		t.Run("claim: "+name, func(t *testing.T) {
			t.Parallel()
			s, c := setup(t)
			lost := &interrupted{after: after}
			c.AddHook(lost.hook())
			lost.n.Store(1)
			if _, _, err := s.Begin(t.Context(), of(one)); !errors.Is(err, errLost) {
				t.Fatalf("Begin: %v, want %v", err, errLost)
			}
			persist(t, c)
			free(t, s)
		})
	}
}

// persist lets no claim expire.
func persist(t *testing.T, c redis.UniversalClient) {
	t.Helper()
	for _, key := range c.Keys(t.Context(), "*").Val() {
		c.Persist(t.Context(), key)
	}
}

// free waits until another request can claim the key.
func free(t *testing.T, s *idempotency.Store) {
	t.Helper()
	waittest.Until(t, "the key is free", func() bool {
		mine, _, err := s.Begin(t.Context(), of(other))
		return err == nil && mine != nil
	})
}

// While Redis is down, what is tried again is bounded.
func TestWhatIsDoneLaterIsBounded(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	claims := make([]*idempotency.Claim, 200)
	for i := range claims {
		r := of(one)
		r.Key = strconv.Itoa(i)
		var err error
		if claims[i], _, err = s.Begin(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	lost := &interrupted{}
	c.AddHook(lost.hook())
	lost.n.Store(math.MaxInt64)
	for _, mine := range claims {
		if err := mine.Finish(t.Context(), answer); !errors.Is(err, errLost) {
			t.Fatalf("Finish: %v, want %v", err, errLost)
		}
	}
	lost.n.Store(0)
	kept := func() (n int) {
		for _, key := range c.Keys(t.Context(), "sh:*:idem:*").Val() {
			if c.PTTL(t.Context(), key).Val() > time.Hour {
				n++
			}
		}
		return n
	}
	waittest.Until(t, "128 answers are kept", func() bool { return kept() >= 128 })
	s.Close()
	if n := kept(); n != 128 {
		t.Errorf("%d answers are kept, want 128", n)
	}
}

// budget is how many bytes are free on the server.
type budget struct{ admit, free, released, reservations int64 }

func (b *budget) Reserve(_ context.Context, _ string, n int64) (reserved, free int64, release func(int64)) {
	b.reservations++
	return min(n, b.admit), b.free, func(n int64) { b.released += n }
}

// Companies of one partition may use the same scope and key.
func TestCompaniesOfOnePartitionHaveTheirOwnKeys(t *testing.T) {
	t.Parallel()
	s := idempotency.New(redistest.New(t), nil, nil)
	claim(t, s, one)
	theirs := of(one)
	for theirs.Company = uuid.New(); partition.Of(theirs.Company) != partition.Of(company); theirs.Company = uuid.New() {
	}
	if mine, _, err := s.Begin(t.Context(), theirs); mine == nil {
		t.Errorf("the key of another company: %v", err)
	}
}

// An answer that is not kept leaves the key free.
func TestAnswersCountInTheShareOfTheCompany(t *testing.T) {
	t.Parallel()
	client, memory := redistest.New(t), &budget{admit: math.MaxInt64, free: 100_000}
	s := idempotency.New(client, nil, memory)
	kept := func(r idempotency.Request) bool {
		t.Helper()
		mine, _, err := s.Begin(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if err := mine.Finish(t.Context(), idempotency.Response{Status: http.StatusCreated, Body: make([]byte, 6_000)}); err != nil {
			t.Fatal(err)
		}
		_, saved, err := s.Begin(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return saved != nil
	}
	numbered := func(i int) idempotency.Request {
		r := of(one)
		r.Key = strconv.Itoa(i)
		return r
	}
	client.HSet(t.Context(), partition.Key(company, "c:"+company.String()), "seq", 1)
	n := 0
	for ; n < 50 && kept(numbered(n)); n++ {
	}
	if n < 10 || n > 12 { // of 8,400 bytes
		t.Errorf("%d answers are kept where 100,000 bytes are free", n)
	}
	// New events find in one field what answers take.
	counted, err := client.HGet(t.Context(), partition.Key(company, "c:"+company.String()), "answers").Int()
	if err != nil || counted < n*8_000 || counted > n*9_000 {
		t.Errorf("the %d answers count as %d bytes: %v", n, counted, err)
	}
	theirs := of(one)
	theirs.Company = uuid.New()
	if !kept(theirs) {
		t.Error("another company's answer is not kept")
	}
	rich := of(one)
	rich.Company = uuid.New()
	client.HSet(t.Context(), partition.Key(rich.Company, "c:"+rich.Company.String()), "bytes", 99_000)
	if kept(rich) {
		t.Error("the answer of a company whose events hold its share is kept")
	}
	memory.admit = 0
	theirs.Key = "above the high-water mark"
	if kept(theirs) {
		t.Error("an answer is kept above the high-water mark")
	}
}

// ttls are the times to live of all keys in the database.
func ttls(t *testing.T, c redis.UniversalClient) []time.Duration {
	t.Helper()
	var all []time.Duration
	for _, key := range c.Keys(t.Context(), "*").Val() {
		all = append(all, c.PTTL(t.Context(), key).Val())
	}
	return all
}
