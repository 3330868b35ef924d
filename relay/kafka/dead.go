package kafka

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	// headerPrefix begins the names of the headers that a dead record has besides its own.
	headerPrefix = "spendhook-"
	// maxWritten bounds the bytes of dead records that are written at a time, since a broker refuses large batches.
	// A larger record is written alone.
	maxWritten = 512 << 10
	// maxReason bounds a reason in bytes.
	maxReason = 4 << 10
)

// deadRecord is a record with the reason why it is dead, and where it was. Those that it has from an earlier time are
// replaced.
func deadRecord(r *kgo.Record, topic, reason string) *kgo.Record {
	headers := slices.DeleteFunc(slices.Clone(r.Headers), func(h kgo.RecordHeader) bool {
		return h.Key == headerPrefix+"dead-reason" || strings.HasPrefix(h.Key, headerPrefix+"source-")
	})
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

// writeDead returns when all records are durable. After an error some may be, and are written again later.
func (s *session) writeDead(ctx context.Context, client *kgo.Client, records []*kgo.Record) error {
	select {
	case s.dead <- struct{}{}:
		defer func() { <-s.dead }()
	case <-ctx.Done():
		return fmt.Errorf("wait to write dead records: %w", ctx.Err())
	}
	for len(records) > 0 {
		n := fitting(records)
		if err := produce(ctx, client, records[:n]); err != nil {
			return fmt.Errorf("write dead records to topic %s: %w", records[0].Topic, err)
		}
		records = records[n:]
	}
	return nil
}

// fitting is how many of records, of which there are some, are written at a time.
func fitting(records []*kgo.Record) int {
	bytes := 0
	for n, r := range records {
		bytes += len(r.Key) + len(r.Value)
		for _, h := range r.Headers {
			bytes += len(h.Key) + len(h.Value)
		}
		if bytes > maxWritten {
			return max(n, 1)
		}
	}
	return len(records)
}

// produce returns at the end of ctx, even when the client still tries: it must, to keep its sequence of records.
func produce(ctx context.Context, client *kgo.Client, records []*kgo.Record) error {
	results := make(chan error, len(records))
	for _, r := range records {
		client.Produce(ctx, r, func(_ *kgo.Record, err error) { results <- err })
	}
	for range records {
		select {
		case err := <-results:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
