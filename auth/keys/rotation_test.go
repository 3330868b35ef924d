package keys

import (
	"errors"
	"slices"
	"testing"
	"time"

	"spendhook/storage"
)

var noon = time.Date(2026, time.July, 1, 12, 0, 0, 0, time.UTC)

// row is a key that signs from a time after noon.
func row(id string, from time.Duration) Key {
	at := storage.Time{Time: noon.Add(from)}
	return Key{ID: id, SignsFrom: at}
}

func TestKeyStates(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		keys []Key
		want []state
	}{
		"the only key":         {[]Key{row("a", -1000*time.Hour)}, []state{stateSigning}},
		"a clock that is late": {[]Key{row("a", time.Minute)}, []state{stateSigning}},
		"the next one waits":   {[]Key{row("a", -time.Hour), row("b", 1)}, []state{stateSigning, stateNext}},
		"the next one's time":  {[]Key{row("a", -time.Hour), row("b", 0)}, []state{stateRetired, stateSigning}},
		"its last token": {
			[]Key{row("a", -99*time.Hour), row("b", -MaxTTL-ClockSlack)},
			[]state{stateRetired, stateSigning},
		},
		"gone": {
			[]Key{row("a", -99*time.Hour), row("b", -MaxTTL-ClockSlack-1)},
			[]state{stateGone, stateSigning},
		},
		"all four": {
			[]Key{row("a", -99*time.Hour), row("b", -33*time.Hour), row("c", -time.Minute), row("d", time.Minute)},
			[]state{stateGone, stateRetired, stateSigning, stateNext},
		},
	} {
		var got []state
		for i := range c.keys {
			got = append(got, stateOf(c.keys, i, noon))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func ids(keys []Key) []string {
	list := []string{}
	for _, k := range keys {
		list = append(list, k.ID)
	}
	return list
}

// A replica whose clock is a day ahead deletes no key that others need.
func TestPruneKeepsADayMore(t *testing.T) {
	t.Parallel()
	end := MaxTTL + ClockSlack + pruneSlack
	keys := []Key{row("a", -1000*time.Hour), row("b", -end-1), row("c", -end)}
	if got := ids(prune(keys, noon)); !slices.Equal(got, []string{"b", "c"}) {
		t.Errorf("kept %v", got)
	}
	if got := ids(prune(keys[:1], noon.Add(1e6*time.Hour))); !slices.Equal(got, []string{"a"}) {
		t.Errorf("the last key is pruned: %v", got)
	}
}

func TestRotate(t *testing.T) {
	t.Parallel()
	signing, waiting := row("a", -time.Hour), row("b", time.Minute)
	for name, c := range map[string]struct {
		keys []Key
		want []string
		err  error
	}{
		"published first": {keys: []Key{signing}, want: []string{"a", "new"}},
		"one waits":       {keys: []Key{signing, waiting}, err: errKeyWaiting},
	} {
		got, err := rotate(slices.Clone(c.keys), row("new", 0), noon)
		if !errors.Is(err, c.err) || err == nil && !slices.Equal(ids(got), c.want) {
			t.Errorf("%s: %v, %v, want %v, %v", name, ids(got), err, c.want, c.err)
		}
		if err == nil && !got[len(got)-1].SignsFrom.Equal(noon.Add(publishLead)) {
			t.Errorf("%s: signs from %v", name, got[len(got)-1].SignsFrom)
		}
	}
	if publishLead <= 5*time.Minute {
		t.Error("verifiers do not know the key in time")
	}
}

func TestRevoke(t *testing.T) {
	t.Parallel()
	gone, retired, signing, next := row("gone", -99*time.Hour), row("retired", -33*time.Hour), row("signing", -time.Hour), row("next", time.Minute)
	for name, c := range map[string]struct {
		keys   []Key
		id     string
		want   []string
		states []state
	}{
		"the only one":                    {[]Key{signing}, "signing", []string{"fresh"}, []state{stateSigning}},
		"the one that signs":              {[]Key{retired, signing}, "signing", []string{"retired", "fresh"}, []state{stateRetired, stateSigning}},
		"one waits":                       {[]Key{retired, signing, next}, "signing", []string{"retired", "next"}, []state{stateRetired, stateSigning}},
		"the one that waits":              {[]Key{retired, signing, next}, "next", []string{"retired", "signing"}, []state{stateRetired, stateSigning}},
		"a retired one":                   {[]Key{retired, signing, next}, "retired", []string{"signing", "next"}, []state{stateSigning, stateNext}},
		"what is gone does not come back": {[]Key{gone, retired, signing}, "retired", []string{"signing"}, []state{stateSigning}},
		"every clock was wrong":           {[]Key{next, row("later", time.Hour)}, "next", []string{"later"}, []state{stateSigning}},
		"unknown":                         {keys: []Key{signing}, id: "fresh"},
		"one that is gone":                {keys: []Key{gone, retired, signing}, id: "gone"},
	} {
		got, err := revoke(slices.Clone(c.keys), c.id, row("fresh", 0), noon)
		var states []state
		for i := range got {
			states = append(states, stateOf(got, i, noon))
		}
		if c.want == nil != errors.Is(err, errNoKey) || c.want != nil && !slices.Equal(ids(got), c.want) || !slices.Equal(states, c.states) {
			t.Errorf("%s: %v, %v, %v", name, ids(got), states, err)
		}
	}
}
