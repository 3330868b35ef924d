package storage

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/runes"
	"golang.org/x/text/transform"
	"golang.org/x/text/unicode/norm"
)

const maxText = 255 // characters of a name

// fold makes equal what differs in case, accents or width only.
func fold(s string) string {
	stripped, _, err := transform.String(transform.Chain(norm.NFKD, runes.Remove(runes.In(unicode.Mn)), norm.NFC), s)
	if err != nil {
		stripped = s
	}
	return cases.Fold().String(stripped)
}

// likePattern matches what contains s, for LIKE … ESCAPE '!'.
func likePattern(s string) string {
	return "%" + strings.NewReplacer("!", "!!", "%", "!%", "_", "!_").Replace(s) + "%"
}

// isText: storable in both databases and short enough for a name.
func isText(s string) bool {
	return utf8.RuneCountInString(s) <= maxText && utf8.ValidString(s) && strings.IndexByte(s, 0) < 0
}

func isName(s string) bool { return isText(s) && strings.TrimSpace(s) != "" }
