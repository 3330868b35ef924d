package importer

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/google/uuid"
)

const (
	maxLine    = 1 << 20
	batchLines = 2000 // some 60 ms of writes
	batchBytes = 8 << 20
)

var errLongLine = fmt.Errorf("the line is longer than %d bytes", maxLine)

// batch has the entries that one transaction of an import writes. Each uuid is in it only once.
type batch struct {
	entries        [ranks][]numberedEntry
	seen           map[uuid.UUID]bool
	refused        []Refusal
	lines, objects int64
	bytes          int64
}

// numberedEntry is an entry with its line number.
type numberedEntry struct {
	entry
	line int64
}

// batcher splits a stream into batches.
type batcher struct {
	in     *bufio.Reader
	out    chan<- *batch
	batch  *batch
	number int64
}

func readBatches(ctx context.Context, r io.Reader, out chan<- *batch) error {
	b := batcher{in: bufio.NewReaderSize(r, maxLine), out: out, batch: &batch{seen: map[uuid.UUID]bool{}}}
	for {
		line, err := b.next()
		switch {
		case errors.Is(err, io.EOF):
			return b.flush(ctx)
		case errors.Is(err, errLongLine):
			b.refuse(err)
		case err != nil:
			return err
		case len(bytes.TrimSpace(line)) > 0:
			if err := b.add(ctx, line); err != nil {
				return err
			}
		}
		if b.batch.lines >= batchLines || b.batch.bytes >= batchBytes {
			if err := b.flush(ctx); err != nil {
				return err
			}
		}
	}
}

// next returns a line, which is valid until the next call. It skips a line
// that is too long and returns errLongLine.
func (b *batcher) next() ([]byte, error) {
	line, err := b.in.ReadSlice('\n')
	size := len(line)
	if size == 0 && err != nil {
		return nil, err
	}
	long := errors.Is(err, bufio.ErrBufferFull)
	for errors.Is(err, bufio.ErrBufferFull) {
		var more []byte
		more, err = b.in.ReadSlice('\n')
		size += len(more)
	}
	b.number++
	b.batch.lines++
	b.batch.bytes += int64(size)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return nil, err
	case long:
		return nil, errLongLine
	default:
		return line, nil
	}
}

// add adds the object of a line to the batch. A second line about the same object starts a new
// batch, so that the first one is already in the database.
func (b *batcher) add(ctx context.Context, line []byte) error {
	e, rank, err := parseEntry(line)
	if err != nil {
		b.refuse(err)
		return nil
	}
	if b.batch.seen[e.id()] {
		b.batch.lines-- // the line counts in the new batch
		if err := b.flush(ctx); err != nil {
			return err
		}
		b.batch.lines++
	}
	b.batch.objects++
	b.batch.seen[e.id()] = true
	b.batch.entries[rank] = append(b.batch.entries[rank], numberedEntry{entry: e, line: b.number})
	return nil
}

func (b *batcher) refuse(err error) {
	b.batch.objects++
	b.batch.refused = append(b.batch.refused, Refusal{Line: b.number, Reason: err.Error()})
}

func (b *batcher) flush(ctx context.Context) error {
	select {
	case b.out <- b.batch:
		b.batch = &batch{seen: map[uuid.UUID]bool{}}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
