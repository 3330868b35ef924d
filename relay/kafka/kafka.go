// Package kafka reads the records of Kafka topics for a relay, as a member of a consumer group.
//
// Each assigned partition has a relay.Stream. The offset that is committed is the end of those records, from the first
// one, that are accepted or in the dead-letter topic; so a member that dies causes duplicates, and never a loss.
package kafka

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"spendhook/internal/pacedlog"
	"spendhook/internal/secret"
	"spendhook/relay"
)

const (
	// maxPolled is how many records are taken from the client at a time.
	maxPolled = 1000
	// fetchBytes and partitionBytes bound the answer of a broker, and the part of a partition in it. The client holds
	// one answer of each broker. A small part wastes less when a partition is paused, since what is held of it is then
	// dropped and read again. A single batch may be larger than both.
	fetchBytes     = 4 << 20
	partitionBytes = 256 << 10
	// fetchWait is how long a broker waits for records; a partition that is resumed may wait as long.
	fetchWait = 250 * time.Millisecond
	// maxBatchBytes bounds a batch after decompression.
	maxBatchBytes = 128 << 20
	// heldTime is how long a partition is not read whose next batch cannot be.
	heldTime = time.Minute
	// maxDeadBytes bounds one dead record, with the headers that are added. The broker has a limit of its own.
	maxDeadBytes = 64 << 20
	// commitEvery is how often settled offsets are committed. A member that dies sends the records of this time again.
	commitEvery = time.Second
	// commitTime bounds the commit at the end of an assignment.
	commitTime = 10 * time.Second
	// leaveTime bounds the commit and the wait for the group at the end.
	leaveTime = 10 * time.Second
	// rebalanceTime is longer than the last request of a stream takes with the commit.
	rebalanceTime = time.Minute
	// checkTime bounds the requests before reading begins.
	checkTime = 30 * time.Second
)

// The values of Options.Start.
const (
	oldest = "oldest"
	newest = "newest"
)

// SASL is how the relay authenticates.
type SASL struct {
	Mechanism string // plain, scram-sha-256 or scram-sha-512
	User      string
	Password  secret.Text
}

// Options are what a Source needs. Brokers, Topics, Group, DeadLetterTopic and Log are required.
type Options struct {
	Brokers []string // host:port of some of them
	Topics  []string
	Group   string // the consumer group, which no other program may use
	// DeadLetterTopic gets the records that can never be accepted. It must exist and not be compacted. It should allow
	// messages larger than those of Topics (max.message.bytes) since headers are added: of a record that is too large
	// only the reason and the place are written.
	DeadLetterTopic string
	TLS             *tls.Config // nil: connections are not encrypted
	SASL            *SASL       // nil: the relay does not authenticate
	// Start is where a topic begins for which the group has no committed offset: oldest (also "") or newest. newest
	// commits the ends of such a topic before the first member joins, and refuses to start while the group has members.
	Start string
	Log   *slog.Logger
}

// Source reads topics. It implements relay.Source. Its methods are safe for concurrent use, except that Run may be
// called again only after it returned.
type Source struct {
	opts    Options
	clients []kgo.Opt // of every client
	commits *pacedlog.Problems

	maxBatchBytes int           // see the constant, which is smaller in tests
	heldTime      time.Duration // likewise

	mu   sync.Mutex
	open *session // nil: Run does not read
}

var _ relay.Source = (*Source)(nil)

// New returns a Source. It does not connect. An error names the options that are wrong.
func New(o Options) (*Source, error) {
	mechanism, err := o.mechanism()
	if err := errors.Join(o.check(), err); err != nil {
		return nil, err
	}
	clients := []kgo.Opt{
		kgo.SeedBrokers(o.Brokers...),
		kgo.ClientID("spendhook-relay"),
		kgo.DisableClientMetrics(),
		kgo.WithLogger(logger{pacedlog.OfLibrary(o.Log, "franz-go")}),
	}
	if o.TLS != nil {
		clients = append(clients, kgo.DialTLSConfig(o.TLS.Clone()))
	}
	if mechanism != nil {
		clients = append(clients, kgo.SASL(mechanism))
	}
	return &Source{
		opts: o, clients: clients,
		commits:       pacedlog.New(o.Log, slog.LevelWarn, "offsets were not committed; their records may be sent again"),
		maxBatchBytes: maxBatchBytes, heldTime: heldTime,
	}, nil
}

func (o *Options) check() error {
	var wrong []error
	for _, option := range []struct {
		name    string
		missing bool
	}{
		{"Brokers", len(o.Brokers) == 0},
		{"Topics", len(o.Topics) == 0},
		{"Group", o.Group == ""},
		{"DeadLetterTopic", o.DeadLetterTopic == ""},
	} {
		if option.missing {
			wrong = append(wrong, fmt.Errorf("%s is missing", option.name))
		}
	}
	if slices.Contains(o.Topics, o.DeadLetterTopic) {
		wrong = append(wrong, fmt.Errorf("the dead-letter topic %q is one of the topics that are read", o.DeadLetterTopic))
	}
	if start := cmp.Or(o.Start, oldest); start != oldest && start != newest {
		wrong = append(wrong, fmt.Errorf("start is %q, not %s or %s", o.Start, oldest, newest))
	}
	return errors.Join(wrong...)
}

// mechanism is nil without SASL.
func (o *Options) mechanism() (sasl.Mechanism, error) {
	if o.SASL == nil {
		return nil, nil //nolint:nilnil // there is none
	}
	user, password := o.SASL.User, o.SASL.Password.Reveal()
	if user == "" || password == "" {
		return nil, errors.New("SASL needs a user and a password")
	}
	switch o.SASL.Mechanism {
	case "plain":
		return plain.Auth{User: user, Pass: password}.AsMechanism(), nil
	case "scram-sha-256":
		return scram.Auth{User: user, Pass: password}.AsSha256Mechanism(), nil
	case "scram-sha-512":
		return scram.Auth{User: user, Pass: password}.AsSha512Mechanism(), nil
	}
	return nil, fmt.Errorf("the SASL mechanism is %q, not plain, scram-sha-256 or scram-sha-512", o.SASL.Mechanism)
}

// Run reads until ctx ends, and then returns nil after what was sent last is settled and committed. It returns an error
// when the brokers cannot be reached at the start, when a topic is missing or that of dead letters is compacted, when
// access is denied, when the membership of the group is lost, when a dead record cannot be written, and
// relay.ErrTooOld. It waits while brokers are away or partitions move. A partition with a batch that cannot be read is
// held: it is read again after a while, and the others go on.
func (s *Source) Run(ctx context.Context, to *relay.Sender) error {
	if err := s.prepare(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	reading, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	session := &session{source: s, to: to, fail: fail, dead: make(chan struct{}, 1), partitions: make(map[place]*partition)}
	alive, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	client, err := kgo.NewClient(slices.Concat(s.clients, session.options(reading), []kgo.Opt{kgo.WithContext(alive)})...)
	if err != nil {
		return fmt.Errorf("open the client: %w", err)
	}
	session.client = client
	s.setOpen(session)
	err = session.poll(reading)
	fail(err) // the streams end
	s.setOpen(nil)
	session.close(cut)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (s *Source) setOpen(session *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = session
}

// logger logs the warnings of the client.
type logger struct{ problems *pacedlog.Problems }

func (logger) Level() kgo.LogLevel { return kgo.LogLevelWarn }

func (l logger) Log(_ kgo.LogLevel, message string, fields ...any) {
	l.problems.Log(context.Background(), slog.String("message", fmt.Sprint(append([]any{message}, fields...)...)))
}
