package outbox

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"spendhook/relay"
)

const (
	// fewRows and manyRows are how many rows one statement reads: few at first, since it is not known how large they are.
	fewRows  = 100
	manyRows = 1000
	// maxReason bounds the reason of a dead row, in bytes.
	maxReason = 4096
)

// reader reads rows into a stream, and deletes those that have an outcome.
type reader struct {
	names   names
	reads   *pgx.Conn // of the goroutine of read
	writes  *pgx.Conn // of the goroutine of the stream
	stream  *relay.Stream
	woken   chan struct{} // of capacity 1: the table may have new rows
	settled chan struct{} // of capacity 1: rows were deleted

	mu     sync.Mutex     // guards memory
	memory map[int64]bool // seq of each row in the stream
}

func newReader(n names, reads, writes *pgx.Conn) *reader {
	return &reader{
		names: n, reads: reads, writes: writes, memory: make(map[int64]bool),
		woken: make(chan struct{}, 1), settled: make(chan struct{}, 1),
	}
}

// read reads rows until ctx ends.
func (r *reader) read(ctx context.Context) error {
	for limit := fewRows; ctx.Err() == nil; {
		n, full, err := r.readRows(ctx, limit)
		switch {
		case err != nil:
			return err
		case full:
			limit = r.drain(ctx)
		case n < limit:
			limit = fewRows
			select {
			case <-r.woken:
			case <-ctx.Done():
			}
		default:
			limit = min(2*limit, manyRows)
		}
	}
	return nil
}

// drain waits until a quarter of the rows in memory is gone, and returns how many may be read then. With less, most of
// what a statement returns would find no place.
func (r *reader) drain(ctx context.Context) int {
	full := r.inMemory()
	for r.inMemory() > full*3/4 {
		select {
		case <-r.settled:
		case <-ctx.Done():
			return 0
		}
	}
	r.stream.WaitWhileFull(ctx)
	return min(max(full-r.inMemory(), 1), manyRows)
}

// readRows reads up to limit rows, and fewer when the stream is full. It returns how many it read, and whether the stream
// is full.
func (r *reader) readRows(ctx context.Context, limit int) (n int, full bool, err error) {
	// The rows in memory are listed before the statement begins: one that is deleted meanwhile is not seen by it.
	r.mu.Lock()
	known := slices.AppendSeq([]int64{}, maps.Keys(r.memory)) // not nil, which would be NULL
	r.mu.Unlock()
	err = bounded(ctx, func(ctx context.Context) error {
		rows, err := r.reads.Query(ctx, r.names.read, known, limit)
		if err != nil {
			return err
		}
		defer rows.Close()
		for !full && rows.Next() {
			record, err := r.scan(rows)
			if err != nil {
				return err
			}
			r.mu.Lock()
			r.memory[record.Position] = true
			r.mu.Unlock()
			r.stream.Add(ctx, record)
			n++
			full = r.stream.Full()
		}
		rows.Close()
		return rows.Err()
	})
	if err != nil {
		return n, full, fmt.Errorf("read the outbox: %w", err)
	}
	return n, full, nil
}

func (r *reader) scan(rows pgx.Rows) (*relay.Record, error) {
	var record relay.Record
	var at pgtype.Timestamptz
	if err := rows.Scan(&record.Position, &record.Key, &at, &record.Value); err != nil {
		return nil, err
	}
	record.Time = at.Time
	record.From = map[string]any{"table": r.names.table, "seq": record.Position}
	return &record, nil
}

func (r *reader) inMemory() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.memory)
}

// settle deletes rows that were accepted, or moves dead ones, in one transaction.
func (r *reader) settle(ctx context.Context, outcomes []relay.Outcome) error {
	var accepted, dead []int64
	var reasons []string
	for _, o := range outcomes {
		if o.Dead == "" {
			accepted = append(accepted, o.Position)
		} else {
			dead, reasons = append(dead, o.Position), append(reasons, reason(o.Dead))
		}
	}
	var both pgx.Batch
	if len(dead) > 0 {
		both.Queue(r.names.bury, dead, reasons)
	}
	both.Queue(r.names.remove, accepted)
	if err := r.writes.SendBatch(ctx, &both).Close(); err != nil {
		return fmt.Errorf("delete rows of the outbox: %w", err)
	}
	r.mu.Lock()
	for _, o := range outcomes {
		delete(r.memory, o.Position)
	}
	r.mu.Unlock()
	signal(r.settled)
	return nil
}

// reason returns text that PostgreSQL can store: it refuses zero bytes, and bytes that are not UTF-8.
func reason(text string) string {
	if len(text) > maxReason {
		text = text[:maxReason]
	}
	return strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", "\uFFFD"), "\uFFFD")
}
