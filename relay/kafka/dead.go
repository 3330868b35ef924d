package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	// headerPrefix begins the names of the headers that a dead record has besides its own.
	headerPrefix = "spendhook-"
	// maxWritten bounds the bytes of dead records that are written at a time, since a broker refuses large batches.
	// A larger record is written alone.
	maxWritten = 512 << 10
	// maxReason bounds a reason in bytes, and maxAdded all that a dead record has in addition.
	maxReason = 4 << 10
	maxAdded  = 8 << 10
	// maxKey bounds the key in bytes that is left of a dead record that is too large for its topic.
	maxKey = 1 << 10
)

// deadRecord is a record with the reason why it is dead, and where it was. Those that it has from an earlier time are
// replaced.
func deadRecord(r *kgo.Record, topic, reason string) *kgo.Record {
	headers := slices.DeleteFunc(slices.Clone(r.Headers), func(h kgo.RecordHeader) bool { return isAdded(h.Key) })
	add := func(name, value string) {
		headers = append(headers, kgo.RecordHeader{Key: headerPrefix + name, Value: []byte(value)})
	}
	add("dead-reason", strings.ToValidUTF8(reason[:min(len(reason), maxReason)], ""))
	add("source-topic", r.Topic)
	add("source-partition", strconv.Itoa(int(r.Partition)))
	add("source-offset", strconv.FormatInt(r.Offset, 10))
	add("source-timestamp", r.Timestamp.UTC().Format(time.RFC3339Nano))
	return &kgo.Record{Topic: topic, Key: r.Key, Value: r.Value, Headers: headers}
}

// isAdded reports whether a header is one of a dead record.
func isAdded(name string) bool {
	return name == headerPrefix+"dead-reason" || name == headerPrefix+"left-out" || strings.HasPrefix(name, headerPrefix+"source-")
}

// stub is a dead record that is too large for its topic, without its value, its own headers and a long key. The source
// has them at the place that is left, as long as it keeps them.
func stub(r *kgo.Record) *kgo.Record {
	left := &kgo.Record{Topic: r.Topic}
	if len(r.Key) <= maxKey {
		left.Key = r.Key
	}
	left.Headers = slices.DeleteFunc(slices.Clone(r.Headers), func(h kgo.RecordHeader) bool { return !isAdded(h.Key) })
	left.Headers = append(left.Headers, kgo.RecordHeader{
		Key: headerPrefix + "left-out", Value: fmt.Appendf(nil, "the record of %d bytes, which is too large for this topic", size(r)),
	})
	return left
}

// writeDead returns when all records are durable. After an error some may be, and are written again later. A record that
// is too large for the topic becomes a stub.
func (s *session) writeDead(ctx context.Context, client *kgo.Client, records []*kgo.Record) error {
	select {
	case s.dead <- struct{}{}:
		defer func() { <-s.dead }()
	case <-ctx.Done():
		return fmt.Errorf("wait to write dead records: %w", ctx.Err())
	}
	for len(records) > 0 {
		n := fitting(records)
		large, err := produce(ctx, client, records[:n])
		for _, r := range large { // one, or those of a batch that is too large as a whole
			if err == nil {
				err = writeLarge(ctx, client, r)
			}
		}
		if err != nil {
			return fmt.Errorf("write dead records to topic %s: %w", records[0].Topic, err)
		}
		records = records[n:]
	}
	return nil
}

// writeLarge writes a record alone, or else its stub.
func writeLarge(ctx context.Context, client *kgo.Client, record *kgo.Record) error {
	for _, r := range []*kgo.Record{record, stub(record)} {
		if large, err := produce(ctx, client, []*kgo.Record{r}); err != nil || len(large) == 0 {
			return err
		}
	}
	return kerr.MessageTooLarge
}

// fitting is how many of records, of which there are some, are written at a time.
func fitting(records []*kgo.Record) int {
	bytes := 0
	for n, r := range records {
		if bytes += size(r); bytes > maxWritten {
			return max(n, 1)
		}
	}
	return len(records)
}

// size is that of the key, the value and the headers of a record in bytes.
func size(r *kgo.Record) int {
	bytes := len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		bytes += len(h.Key) + len(h.Value)
	}
	return bytes
}

// produce returns the records that are too large for their topic, when all others are durable. It returns at the end of
// ctx, even when the client still tries: it must, to keep its sequence of records.
func produce(ctx context.Context, client *kgo.Client, records []*kgo.Record) (large []*kgo.Record, err error) {
	type result struct {
		record *kgo.Record
		err    error
	}
	results := make(chan result, len(records))
	for _, r := range records {
		client.Produce(ctx, r, func(r *kgo.Record, err error) { results <- result{r, err} })
	}
	for range records {
		select {
		case r := <-results:
			switch {
			case errors.Is(r.err, kerr.MessageTooLarge):
				large = append(large, r.record)
			case r.err != nil:
				return nil, r.err
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return large, nil
}
