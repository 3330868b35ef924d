package kafka

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"spendhook/internal/pause"
	"spendhook/relay"
)

const (
	// maxSpan bounds the records of a partition after its committed offset: later ones are not read while one record
	// waits for so long. A stream bounds only those that are not settled.
	maxSpan = 20_000
	// fullPause is how often a paused partition is looked at.
	fullPause = 10 * time.Millisecond
)

type place struct {
	topic  string
	number int32
}

// partition is one that is assigned to this member.
type partition struct {
	place

	session *session
	client  *kgo.Client
	stream  *relay.Stream
	paused  chan struct{} // of capacity 1: it is full
	held    chan struct{} // of capacity 1: its next batch cannot be read
	stop    context.CancelFunc
	running sync.WaitGroup

	next       int64 // the offset to be read; 0: not known. Only take uses it.
	unreadable bool  // its next batch could not be read, and no record was since then; guarded by the session

	mu     sync.Mutex // guards prefix
	prefix *prefix
}

// newPartition starts to send the records of a partition until ctx ends or stop is called.
func newPartition(ctx context.Context, s *session, client *kgo.Client, at place) *partition {
	ctx, stop := context.WithCancel(ctx)
	p := &partition{
		place: at, session: s, client: client, paused: make(chan struct{}, 1), held: make(chan struct{}, 1), stop: stop,
		prefix: newPrefix(),
	}
	p.stream = s.to.Stream(p.settle)
	p.running.Go(func() {
		if err := p.stream.Run(ctx); err != nil {
			s.fail(at.wrap("send records of", err))
		}
	})
	p.running.Go(func() { p.resume(ctx) })
	return p
}

// take takes what was read. Before a batch that cannot be read there may be records.
func (p *partition) take(ctx context.Context, fetched *kgo.FetchPartition) {
	if fetched.Err == nil || len(fetched.Records) > 0 {
		p.add(ctx, fetched)
	}
	switch {
	case len(fetched.Records) > 0:
		p.setUnreadable(false)
	case unreadable(fetched):
		p.hold(ctx, fetched.Err)
	}
}

func (p *partition) setUnreadable(on bool) {
	p.session.mu.Lock()
	defer p.session.mu.Unlock()
	if p.unreadable != on {
		p.unreadable = on
		p.session.show()
	}
}

// hold reads the partition no more for a while.
func (p *partition) hold(ctx context.Context, err error) {
	p.session.source.opts.Log.LogAttrs(ctx, slog.LevelError, "a batch of records cannot be read; only its partition waits for it",
		slog.String("topic", p.topic), slog.Int("partition", int(p.number)), slog.String("exception.message", err.Error()))
	p.setUnreadable(true)
	p.pause(p.held)
}

// pause reads the partition no more until resume has heard why.
func (p *partition) pause(why chan<- struct{}) {
	p.client.PauseFetchPartitions(p.asMap())
	select {
	case why <- struct{}{}:
	default:
	}
}

// add takes records that were read, and pauses the partition when that is enough.
func (p *partition) add(ctx context.Context, fetched *kgo.FetchPartition) {
	p.noteLoss(ctx, fetched)
	records := make([]*relay.Record, len(fetched.Records))
	p.mu.Lock()
	for i, r := range fetched.Records {
		original := detach(r)
		records[i] = record(original)
		p.prefix.add(records[i], original)
	}
	p.mu.Unlock()
	p.stream.Add(ctx, records...)
	if p.full() {
		p.pause(p.paused)
	}
}

// noteLoss logs when records were deleted before they were read.
func (p *partition) noteLoss(ctx context.Context, fetched *kgo.FetchPartition) {
	if p.next == 0 {
		p.next = p.client.CommittedOffsets()[p.topic][p.number].Offset
	}
	if first := fetched.LogStartOffset; first > p.next && p.next > 0 {
		p.session.source.opts.Log.LogAttrs(ctx, slog.LevelError, "records were deleted before they were read",
			slog.String("topic", p.topic), slog.Int("partition", int(p.number)),
			slog.Int64("first", p.next), slog.Int64("last", first-1))
	}
	if n := len(fetched.Records); n > 0 {
		p.next = fetched.Records[n-1].Offset + 1
	}
}

// resume reads the partition again once it is not full, or was held for long enough.
func (p *partition) resume(ctx context.Context) {
	for {
		select {
		case <-p.paused:
		case <-p.held:
			if !pause.For(ctx, p.session.source.heldTime) {
				return
			}
		case <-ctx.Done():
			return
		}
		for p.full() {
			if !pause.For(ctx, fullPause) {
				return
			}
		}
		// When take pauses the partition at this moment, this undoes it, and the next take pauses it again.
		p.client.ResumeFetchPartitions(p.asMap())
	}
}

func (p *partition) full() bool {
	p.mu.Lock()
	size := p.prefix.size()
	p.mu.Unlock()
	return size >= maxSpan || p.stream.Full()
}

// settle writes dead records to their topic, and then lets the offset pass.
func (p *partition) settle(ctx context.Context, outcomes []relay.Outcome) error {
	if dead := p.dead(outcomes); len(dead) > 0 {
		if err := p.session.writeDead(ctx, p.client, dead); err != nil {
			return err
		}
	}
	p.mu.Lock()
	end, moved := p.prefix.settle(outcomes)
	p.mu.Unlock()
	if moved { // the client commits it within commitEvery
		p.client.MarkCommitOffsets(map[string]map[int32]kgo.EpochOffset{p.topic: {p.number: end}})
	}
	return nil
}

func (p *partition) dead(outcomes []relay.Outcome) (dead []*kgo.Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range outcomes {
		if o.Dead != "" {
			dead = append(dead, deadRecord(p.prefix.original(o.Record), p.session.source.opts.DeadLetterTopic, o.Dead))
		}
	}
	return dead
}

func (p *partition) asMap() map[string][]int32 { return map[string][]int32{p.topic: {p.number}} }

// detach copies what a record has, which is otherwise a part of the whole batch: one record would hold it in memory.
func detach(r *kgo.Record) *kgo.Record {
	own := *r
	own.Key, own.Value = bytes.Clone(r.Key), bytes.Clone(r.Value)
	own.Headers = make([]kgo.RecordHeader, len(r.Headers))
	for i, h := range r.Headers {
		own.Headers[i] = kgo.RecordHeader{Key: h.Key, Value: bytes.Clone(h.Value)}
	}
	return &own
}

// record is what a mapping reads. A tombstone has an empty value. Of several headers with one name the last counts.
func record(r *kgo.Record) *relay.Record {
	key := string(r.Key)
	out := &relay.Record{
		Key: key, Value: r.Value, Headers: make(map[string]string, len(r.Headers)), Position: r.Offset,
		From: map[string]any{"topic": r.Topic, "partition": int64(r.Partition), "offset": r.Offset, "key": key},
	}
	for _, h := range r.Headers {
		out.Headers[h.Key] = string(h.Value)
	}
	if r.Timestamp.UnixMilli() >= 0 { // -1: the record has none
		out.Time = r.Timestamp
	}
	return out
}
