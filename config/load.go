package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"spendhook/internal/invalid"
	"spendhook/internal/secret"
)

// Load returns the defaults, overridden by the YAML file at path (none when
// empty), by the environment (as from os.Environ: cards.concurrency is
// SPENDHOOK_CARDS_CONCURRENCY; lists are comma-separated)
// and by overrides (key to text, as from flags), in this order. An empty text
// means not set. One *invalid.Error has all problems, those of validate included.
// Any other error is that of a file that cannot be read or parsed.
func Load(path string, environ []string, overrides map[string]string) (Config, error) {
	return load(path, environ, overrides, (*Config).validate)
}

// LoadDaemon is Load for the command serve: outside dev it also requires mutual TLS, or trusted
// proxies.
func LoadDaemon(path string, environ []string, overrides map[string]string) (Config, error) {
	return load(path, environ, overrides, (*Config).validateDaemon)
}

func load(path string, environ []string, overrides map[string]string, validate func(*Config, *invalid.Error)) (Config, error) {
	c := defaults()
	l := loader{settings: settings(&c)}
	if err := l.file(path); err != nil {
		return Config{}, err
	}
	l.environment(environ)
	l.overrides(overrides)
	l.secretFiles(&c)
	validate(&c, &l.problems)
	return c, l.problems.OrNil()
}

// loader writes to the settings by key and gathers what goes wrong.
type loader struct {
	settings map[string]reflect.Value
	problems invalid.Error
}

// settings finds every setting of a Config, by key.
func settings(c *Config) map[string]reflect.Value {
	found := map[string]reflect.Value{}
	var walk func(prefix string, v reflect.Value)
	walk = func(prefix string, v reflect.Value) {
		for field, value := range v.Fields() {
			key := prefix + field.Tag.Get("yaml")
			if value.Kind() == reflect.Struct {
				walk(key+".", value)
				continue
			}
			found[key] = value
		}
	}
	walk("", reflect.ValueOf(c).Elem())
	found["redis"] = found["redis.url"] // an address alone, for short
	return found
}

func (l *loader) file(path string) error {
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	var document yaml.Node
	if err := yaml.Load(text, &document); err != nil && !isBlank(text) {
		return fmt.Errorf("read %s: %w", path, syntaxError(err))
	}
	for _, root := range document.Content {
		l.mapping("", root)
	}
	return nil
}

func isBlank(text []byte) bool {
	for line := range bytes.Lines(text) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			return false
		}
	}
	return true
}

// syntaxError removes the parser's internals from an error.
func syntaxError(err error) error {
	var e *yaml.LoadError
	if errors.As(err, &e) && e.Mark.Line > 0 {
		return fmt.Errorf("line %d: %s", e.Mark.Line, e.Message)
	}
	return err
}

// mapping reads the keys of one level; prefix is "" or ends in a dot.
func (l *loader) mapping(prefix string, n *yaml.Node) {
	if n.Kind != yaml.MappingNode {
		l.problems.Add(strings.TrimSuffix(prefix, "."), "INVALID", "line %d: want keys with values", n.Line)
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		key := prefix + name.Value
		if seen[key] {
			l.problems.Add(key, "DUPLICATE_KEY", "line %d: is there twice", name.Line)
			continue
		}
		seen[key] = true
		l.pair(key, name.Line, value)
	}
}

func (l *loader) pair(key string, line int, value *yaml.Node) {
	setting, known := l.settings[key]
	switch {
	case known && value.Kind == yaml.MappingNode && l.isSection(key):
		l.mapping(key+".", value)
	case !known && l.isSection(key):
		l.mapping(key+".", value)
	case !known:
		l.problems.Add(key, "UNKNOWN_KEY", "line %d: there is no such setting", line)
	case value.ShortTag() == "!!null":
		l.problems.Add(key, "INVALID", "line %d: has no value: leave it out for its default", line)
	default:
		l.set(key, fmt.Sprintf("line %d", line), value, setting)
	}
}

func (l *loader) isSection(key string) bool {
	for known := range l.settings {
		if strings.HasPrefix(known, key+".") {
			return true
		}
	}
	return false
}

// environment applies the variables SPENDHOOK_*. It refuses unknown ones, except those that
// commands read and those that Kubernetes sets for Services.
func (l *loader) environment(environ []string) {
	for _, pair := range environ {
		name, text, _ := strings.Cut(pair, "=")
		if text == "" || !strings.HasPrefix(name, envPrefix) {
			continue
		}
		known := commandVariables[name] || ofService.MatchString(name)
		for key, setting := range l.settings {
			if envName(key) == name {
				known = true
				l.setText(key, name, text, setting)
			}
		}
		if !known {
			l.problems.Add(name, "UNKNOWN_KEY", "there is no such setting")
		}
	}
}

const envPrefix = "SPENDHOOK_"

// commandVariables are the variables that set flags of commands; they are not settings.
var commandVariables = map[string]bool{
	"SPENDHOOK_CONFIG": true, "SPENDHOOK_URL": true, "SPENDHOOK_TOKEN": true, "SPENDHOOK_SECRET": true,
	"SPENDHOOK_CACERT": true, "SPENDHOOK_CLIENT_CERT": true, "SPENDHOOK_CLIENT_KEY": true,
	"SPENDHOOK_TOKEN_FILE": true, "SPENDHOOK_PROFILE": true, "SPENDHOOK_CLIENT_ID": true, "SPENDHOOK_CLIENT_SECRET": true,
	"SPENDHOOK_COMPANY_UUID": true,
}

// ofService are the variables that Kubernetes sets in each container for a Service
// whose name begins with spendhook.
var ofService = regexp.MustCompile(`^SPENDHOOK_(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT|PORT_[0-9]+_.*)$`)

// maxSecretFile bounds the file of one secret, in bytes.
const maxSecretFile = 64 << 10

// secretFiles reads the secrets that are given as the names of files.
func (l *loader) secretFiles(c *Config) {
	none := defaults()
	for _, s := range []struct {
		key, file string
		text      *secret.Text
		standard  secret.Text
	}{
		{"redis.url", c.Redis.URLFile, &c.Redis.URL, none.Redis.URL},
		{"storage.url", c.Storage.URLFile, &c.Storage.URL, ""},
		{"egress.proxy_url", c.Egress.ProxyURLFile, &c.Egress.ProxyURL, ""},
	} {
		if s.file == "" {
			continue
		}
		if *s.text != s.standard {
			l.problems.Add(s.key+"_file", "CONFLICT", "%s is set, too: want one of them", s.key)
			continue
		}
		text, err := readSecret(s.file)
		if err != nil {
			l.problems.Add(s.key+"_file", "INVALID", "%v", err)
			continue
		}
		*s.text = text
	}
}

// readSecret reads a file without the white space around its text.
func readSecret(path string) (secret.Text, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSecretFile+1))
	switch text = bytes.TrimSpace(text); {
	case err != nil:
		return "", err
	case len(text) == 0:
		return "", fmt.Errorf("%s is empty", path)
	case len(text) > maxSecretFile:
		return "", fmt.Errorf("%s has more than %d bytes", path, maxSecretFile)
	}
	return secret.Text(text), nil
}

func envName(key string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

func (l *loader) overrides(overrides map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(overrides)) {
		setting, known := l.settings[key]
		if !known {
			l.problems.Add(key, "UNKNOWN_KEY", "there is no such setting")
			continue
		}
		if overrides[key] != "" {
			l.setText(key, "flag", overrides[key], setting)
		}
	}
}

// set sets a setting. A value of the wrong type is a problem and changes nothing.
func (l *loader) set(key, source string, value *yaml.Node, setting reflect.Value) {
	if t := setting.Type(); t == durationType || t.Kind() == reflect.Slice && t.Elem() == durationType {
		value = inHours(value)
	}
	read := reflect.New(setting.Type())
	if value.Load(read.Interface(), yaml.WithKnownFields()) != nil {
		l.problems.Add(key, "INVALID", "%s: want %s", source, wanted(setting.Type()))
		return
	}
	setting.Set(read.Elem())
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	daysOrWeeks  = regexp.MustCompile(`([0-9]*\.?[0-9]+)([dw])`)
)

// inHours writes days and weeks of durations as hours.
func inHours(n *yaml.Node) *yaml.Node {
	out := *n
	out.Value = daysOrWeeks.ReplaceAllStringFunc(n.Value, func(part string) string {
		number, err := strconv.ParseFloat(part[:len(part)-1], 64)
		if err != nil {
			return part
		}
		if number *= 24; part[len(part)-1] == 'w' {
			number *= 7
		}
		return strconv.FormatFloat(number, 'f', -1, 64) + "h"
	})
	out.Content = make([]*yaml.Node, len(n.Content))
	for i, item := range n.Content {
		out.Content[i] = inHours(item)
	}
	return &out
}

// setText parses text as in a YAML file, except that a list needs no brackets.
func (l *loader) setText(key, source, text string, setting reflect.Value) {
	value := &yaml.Node{Kind: yaml.ScalarNode, Value: text}
	if setting.Kind() == reflect.Slice {
		value = list(text)
	}
	l.set(key, source, value, setting)
}

func list(text string) *yaml.Node {
	var document yaml.Node
	if strings.HasPrefix(text, "[") && yaml.Load([]byte(text), &document) == nil {
		return document.Content[0]
	}
	n := &yaml.Node{Kind: yaml.SequenceNode}
	for item := range strings.SplitSeq(text, ",") {
		n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: strings.TrimSpace(item)})
	}
	return n
}

// wanted describes the values of a type. It never contains the given value.
func wanted(t reflect.Type) string {
	switch {
	case t.Kind() == reflect.Slice:
		return "a list, each " + wanted(t.Elem())
	case t == durationType:
		return "a duration with its unit, as in 1h30m or 7d"
	case t == reflect.TypeFor[netip.Prefix]():
		return "an address range, as in 10.0.0.0/8"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Int:
		return "a whole number"
	case t.Kind() == reflect.Float64:
		return "a number"
	case t.Kind() == reflect.Struct:
		return members(t)
	}
	return "text"
}

// members shows the keys of a list's items.
func members(t reflect.Type) string {
	names := make([]string, t.NumField())
	for i := range names {
		names[i] = t.Field(i).Tag.Get("yaml") + ": ..."
	}
	return "{" + strings.Join(names, ", ") + "}"
}

// Changed names the settings in which two configurations differ, sorted.
func Changed(a, b *Config) []string {
	var names []string
	others := settings(b)
	for key, value := range settings(a) {
		if key != "redis" && !reflect.DeepEqual(value.Interface(), others[key].Interface()) {
			names = append(names, key)
		}
	}
	slices.Sort(names)
	return names
}

// Adopt copies the setting named key. It panics when there is none.
func Adopt(to, from *Config, key string) { settings(to)[key].Set(settings(from)[key]) }
