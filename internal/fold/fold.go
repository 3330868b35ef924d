// Package fold removes differences between texts that a search ignores.
package fold

import (
	"strings"
	"unicode"

	"golang.org/x/text/cases"
	"golang.org/x/text/runes"
	"golang.org/x/text/transform"
	"golang.org/x/text/unicode/norm"
)

// Text removes differences in case, accents and width. Latin letters with a stroke or a hook,
// and ligatures, count as accented: ł, ø, æ.
func Text(s string) string {
	stripped, _, err := transform.String(transform.Chain(norm.NFKD, runes.Remove(runes.In(unicode.Mn)), norm.NFC), s)
	if err != nil {
		stripped = s
	}
	return plainLatin.Replace(cases.Fold().String(stripped))
}

// plainLatin has the lower-case letters that Unicode does not decompose. ß is already folded.
var plainLatin = strings.NewReplacer(
	"æ", "ae", "œ", "oe", "þ", "th", "ŋ", "n", "ĸ", "k", "ə", "e", "ı", "i", "ȷ", "j",
	"ƀ", "b", "ɓ", "b", "ƈ", "c", "ȼ", "c", "đ", "d", "ð", "d", "ɖ", "d", "ɗ", "d", "ɇ", "e", "ɛ", "e", "ƒ", "f",
	"ǥ", "g", "ɠ", "g", "ħ", "h", "ɨ", "i", "ɉ", "j", "ƙ", "k", "ł", "l", "ƚ", "l", "ɫ", "l", "ⱡ", "l",
	"ɲ", "n", "ƞ", "n", "ø", "o", "ɵ", "o", "ɔ", "o", "ƥ", "p", "ɍ", "r", "ƭ", "t", "ʈ", "t", "ŧ", "t", "ⱦ", "t",
	"ʉ", "u", "ʋ", "v", "ƴ", "y", "ɏ", "y", "ƶ", "z", "ȥ", "z",
)
