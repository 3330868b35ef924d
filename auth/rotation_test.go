package auth

import (
	"errors"
	"slices"
	"testing"
	"time"
)

var noon = time.Date(2026, time.July, 1, 12, 0, 0, 0, time.UTC)

// row is a key that signs from a time after noon.
func row(id string, from time.Duration) TokenKey {
	return TokenKey{ID: id, SignsFrom: noon.Add(from), TokensUntil: noon.Add(from)}
}

func TestKeyStates(t *testing.T) {
	t.Parallel()
	long := row("long", -3*time.Hour)
	long.TokensUntil = noon.Add(time.Hour)
	for name, c := range map[string]struct {
		keys []TokenKey
		want []KeyState
	}{
		"the only key":         {[]TokenKey{row("a", -1000*time.Hour)}, []KeyState{KeySigning}},
		"a clock that is late": {[]TokenKey{row("a", time.Minute)}, []KeyState{KeySigning}},
		"the next one waits":   {[]TokenKey{row("a", -time.Hour), row("b", 1)}, []KeyState{KeySigning, KeyNext}},
		"the next one's time":  {[]TokenKey{row("a", -time.Hour), row("b", 0)}, []KeyState{KeyRetired, KeySigning}},
		"its last token": {
			[]TokenKey{row("a", -9*time.Hour), row("b", -TokenTTL-clockSlack)},
			[]KeyState{KeyRetired, KeySigning},
		},
		"gone": {
			[]TokenKey{row("a", -9*time.Hour), row("b", -TokenTTL-clockSlack-1)},
			[]KeyState{KeyGone, KeySigning},
		},
		"a long token": {[]TokenKey{long, row("b", -2*time.Hour)}, []KeyState{KeyRetired, KeySigning}},
		"all four": {
			[]TokenKey{row("a", -9*time.Hour), row("b", -3*time.Hour), row("c", -time.Minute), row("d", time.Minute)},
			[]KeyState{KeyGone, KeyRetired, KeySigning, KeyNext},
		},
	} {
		var got []KeyState
		for i := range c.keys {
			got = append(got, stateOf(c.keys, i, noon))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func ids(keys []TokenKey) []string {
	list := []string{}
	for _, k := range keys {
		list = append(list, k.ID)
	}
	return list
}

// A clock that is a day ahead still deletes nothing that others need.
func TestPruneKeepsADayMore(t *testing.T) {
	t.Parallel()
	end := TokenTTL + clockSlack + pruneSlack
	keys := []TokenKey{row("a", -1000*time.Hour), row("b", -end-1), row("c", -end)}
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
	many := []TokenKey{}
	for i := range maxKeys {
		many = append(many, row(string(rune('a'+i)), time.Duration(i-maxKeys)*time.Second))
	}
	for name, c := range map[string]struct {
		keys  []TokenKey
		hurry bool
		from  time.Duration // of the last key after it
		want  []string
		err   error
	}{
		"published first":          {keys: []TokenKey{signing}, from: publishLead, want: []string{"a", "new"}},
		"in a hurry":               {keys: []TokenKey{signing}, hurry: true, from: hurriedLead, want: []string{"a", "new"}},
		"one waits":                {keys: []TokenKey{signing, waiting}, err: errKeyWaiting},
		"one waits, in a hurry":    {keys: []TokenKey{signing, waiting}, hurry: true, from: hurriedLead, want: []string{"a", "b"}},
		"one comes soon, in haste": {keys: []TokenKey{signing, row("b", time.Second)}, hurry: true, from: time.Second, want: []string{"a", "b"}},
		"too many":                 {keys: many, err: errTooManyKeys},
	} {
		got, err := rotate(slices.Clone(c.keys), row("new", 0), noon, c.hurry)
		if !errors.Is(err, c.err) || err == nil && !slices.Equal(ids(got), c.want) {
			t.Errorf("%s: %v, %v, want %v, %v", name, ids(got), err, c.want, c.err)
		}
		if err == nil && !got[len(got)-1].SignsFrom.Equal(noon.Add(c.from)) {
			t.Errorf("%s: signs from %v", name, got[len(got)-1].SignsFrom)
		}
	}
	if publishLead <= 5*time.Minute || hurriedLead <= 2*SyncInterval {
		t.Error("verifiers do not know the key in time")
	}
}

func TestRevoke(t *testing.T) {
	t.Parallel()
	gone, retired, signing, next := row("gone", -9*time.Hour), row("retired", -2*time.Hour), row("signing", -time.Hour), row("next", time.Minute)
	for name, c := range map[string]struct {
		keys   []TokenKey
		id     string
		want   []string
		states []KeyState
	}{
		"the only one":                    {[]TokenKey{signing}, "signing", []string{"fresh"}, []KeyState{KeySigning}},
		"the one that signs":              {[]TokenKey{retired, signing}, "signing", []string{"retired", "fresh"}, []KeyState{KeyRetired, KeySigning}},
		"one waits":                       {[]TokenKey{retired, signing, next}, "signing", []string{"retired", "next"}, []KeyState{KeyRetired, KeySigning}},
		"the one that waits":              {[]TokenKey{retired, signing, next}, "next", []string{"retired", "signing"}, []KeyState{KeyRetired, KeySigning}},
		"a retired one":                   {[]TokenKey{retired, signing, next}, "retired", []string{"signing", "next"}, []KeyState{KeySigning, KeyNext}},
		"what is gone does not come back": {[]TokenKey{gone, retired, signing}, "retired", []string{"signing"}, []KeyState{KeySigning}},
		"every clock was wrong":           {[]TokenKey{next, row("later", time.Hour)}, "next", []string{"later"}, []KeyState{KeySigning}},
		"unknown":                         {keys: []TokenKey{signing}, id: "fresh"},
		"one that is gone":                {keys: []TokenKey{gone, retired, signing}, id: "gone"},
	} {
		got, err := revoke(slices.Clone(c.keys), c.id, row("fresh", 0), noon)
		var states []KeyState
		for i := range got {
			states = append(states, stateOf(got, i, noon))
		}
		if c.want == nil != errors.Is(err, errNoKey) || c.want != nil && !slices.Equal(ids(got), c.want) || !slices.Equal(states, c.states) {
			t.Errorf("%s: %v, %v, %v", name, ids(got), states, err)
		}
	}
}
