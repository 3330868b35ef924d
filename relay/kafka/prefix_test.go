package kafka

import (
	"fmt"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"spendhook/relay"
)

// read adds records with offsets to p.
func read(p *prefix, epoch int32, at ...int64) (list []*relay.Record) {
	for _, offset := range at {
		r := &relay.Record{Position: offset}
		p.add(r, &kgo.Record{Offset: offset, LeaderEpoch: epoch})
		list = append(list, r)
	}
	return list
}

func settled(records ...*relay.Record) (list []relay.Outcome) {
	for _, r := range records {
		list = append(list, relay.Outcome{Record: r})
	}
	return list
}

func TestThePrefixEndsBeforeTheFirstRecordThatIsNotSettled(t *testing.T) {
	t.Parallel()
	p := newPrefix()
	r := read(p, 3, 10, 11, 15, 16) // 12 to 14 do not exist
	for _, step := range []struct {
		settle []int
		want   string
		size   int
	}{
		{[]int{1}, "{0 0} false", 4},
		{[]int{3, 0}, "{3 12} true", 2},
		{[]int{2}, "{3 17} true", 0},
		{nil, "{0 0} false", 0},
	} {
		var outcomes []relay.Outcome
		for _, i := range step.settle {
			outcomes = append(outcomes, settled(r[i])...)
		}
		end, moved := p.settle(outcomes)
		if got := fmt.Sprint(end, moved); got != step.want || p.size() != step.size {
			t.Errorf("after %v: %s and %d records, want %s and %d", step.settle, got, p.size(), step.want, step.size)
		}
	}
}

// Brokers that lost the end of a partition write other records with its offsets.
func TestOffsetsThatRepeatAreDifferentRecords(t *testing.T) {
	t.Parallel()
	p := newPrefix()
	lost := read(p, 1, 5, 6)
	found := read(p, 2, 5)
	if _, moved := p.settle(settled(found...)); moved {
		t.Error("the records that were read before are not settled")
	}
	if end, _ := p.settle(settled(lost...)); end != (kgo.EpochOffset{Epoch: 2, Offset: 6}) {
		t.Errorf("the end is %+v", end)
	}
}

// However records are settled, the end is after the last record before which all are.
func TestThePrefixOfAnyOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := newPrefix()
		at := rapid.SliceOfNDistinct(rapid.Int64Range(0, 1000), 1, 60, rapid.ID[int64]).Draw(t, "offsets")
		slices.Sort(at)
		records := read(p, 0, at...)
		done := make(map[int64]bool)
		var end int64
		for rest := rapid.Permutation(records).Draw(t, "order"); len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "settled at a time")
			for _, r := range rest[:n] {
				done[r.Position] = true
			}
			if got, moved := p.settle(settled(rest[:n]...)); moved {
				end = got.Offset
			}
			rest = rest[n:]
			want := int64(0)
			for _, offset := range at {
				if !done[offset] {
					break
				}
				want = offset + 1
			}
			if end != want {
				t.Fatalf("the end is %d, want %d: read %v, settled %v", end, want, at, done)
			}
		}
		if p.size() != 0 || len(p.open) != 0 {
			t.Fatalf("%d and %d records are left", p.size(), len(p.open))
		}
	})
}
