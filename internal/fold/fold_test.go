package fold_test

import (
	"testing"
	"unicode"

	"spendhook/internal/fold"
)

func TestFold(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"Łukasz Żółć":      "lukasz zolc",
		"Søren Ǿrsted":     "soren orsted",
		"Đorđe Ðuro":       "dorde duro",
		"STRAẞE, Weiß":     "strasse, weiss",
		"Æthelred Œuvré":   "aethelred oeuvre",
		"Þórður":           "thordur",
		"Ħal Għar Ŧ":       "hal ghar t",
		"Işıl İSTANBUL":    "isil istanbul",
		"Ｗｉｄｅ ﬁ":           "wide fi",
		"Ngô Đình Diệm":    "ngo dinh diem",
		"Ольга, Νίκος, 山田": "ольга, νικοσ, 山田",
	} {
		if got := fold.Text(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		if again := fold.Text(want); again != want {
			t.Errorf("%s: folded twice it is %q", name, again)
		}
	}
}

// A user can search with a keyboard without accents: all letters of Latin-1 and Latin
// Extended-A become plain letters.
func TestFoldLeavesPlainLetters(t *testing.T) {
	t.Parallel()
	for r := rune(0xC0); r < 0x180; r++ {
		if !unicode.IsLetter(r) {
			continue
		}
		for _, got := range fold.Text(string(r)) {
			if got > unicode.MaxASCII && got != 'ʼ' && got != '·' { // ŉ and ŀ
				t.Errorf("%c becomes %c", r, got)
			}
		}
	}
}
