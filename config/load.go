package config

import (
	"bytes"
	"cmp"
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

	"github.com/google/uuid"
	"go.yaml.in/yaml/v4"

	"spendhook/internal/invalid"
)

// Load returns the settings. The YAML file at path overrides the defaults; "" means no file. The
// environment, in the form of os.Environ, overrides the file: SPENDHOOK_DELIVERY_JITTER sets
// delivery.jitter, and lists are comma-separated. overrides, texts by key, override the environment.
// An empty text does not set anything. One *invalid.Error has all problems. Any other error means
// that the file cannot be read or parsed.
func Load(path string, environ []string, overrides map[string]string) (Config, error) {
	return load(path, environ, overrides, false)
}

// LoadDaemon is Load for the command serve: outside dev it also requires mutual TLS, or trusted
// proxies.
func LoadDaemon(path string, environ []string, overrides map[string]string) (Config, error) {
	return load(path, environ, overrides, true)
}

func load(path string, environ []string, overrides map[string]string, daemon bool) (Config, error) {
	c := defaults()
	l := loader{settings: settings(&c)}
	if err := l.file(path); err != nil {
		return Config{}, err
	}
	l.environment(environ)
	l.overrides(overrides)
	l.secretFiles()
	c.validate(&l.problems)
	if daemon {
		checker{&l.problems}.mutualTLS(&c)
	}
	return c, l.problems.OrNil()
}

// loader sets settings by key and collects the problems.
type loader struct {
	settings map[string]setting
	problems invalid.Error
}

// setting is one field of a Config.
type setting struct {
	reflect.Value

	tag reflect.StructTag
}

// settings finds every setting of a Config, by key.
func settings(c *Config) map[string]setting {
	found := map[string]setting{}
	var walk func(prefix string, v reflect.Value)
	walk = func(prefix string, v reflect.Value) {
		for field, value := range v.Fields() {
			key := prefix + field.Tag.Get("yaml")
			if value.Kind() == reflect.Struct {
				walk(key+".", value)
				continue
			}
			found[key] = setting{value, field.Tag}
		}
	}
	walk("", reflect.ValueOf(c).Elem())
	found["redis"] = found["redis.url"] // "redis: URL" is short for redis.url
	return found
}

func defaults() Config {
	var c Config
	l := loader{settings: settings(&c)}
	for key, s := range l.settings {
		if text := s.tag.Get("default"); text != "" {
			l.setText(key, "default", text)
		}
	}
	return c
}

func (l *loader) file(path string) error {
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	documents := yaml.NewDecoder(bytes.NewReader(text))
	var document, second yaml.Node
	if err := documents.Decode(&document); err != nil && !errors.Is(err, io.EOF) { // EOF: the file is empty
		return fmt.Errorf("read %s: %w", path, err)
	}
	if err := documents.Decode(&second); !errors.Is(err, io.EOF) {
		return fmt.Errorf("read %s: want a single YAML document", path)
	}
	for _, root := range document.Content {
		l.mapping("", root)
	}
	return nil
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
		key, line := prefix+name.Value, name.Line
		_, known := l.settings[key]
		isSection := func(known string) bool { return strings.HasPrefix(known, key+".") }
		switch {
		case seen[key]:
			l.problems.Add(key, "DUPLICATE_KEY", "line %d: is given twice", line)
		case (!known || value.Kind == yaml.MappingNode) && slices.ContainsFunc(slices.Collect(maps.Keys(l.settings)), isSection):
			l.mapping(key+".", value)
		case !known:
			l.problems.Add(key, "UNKNOWN_KEY", "line %d: there is no such setting", line)
		case value.ShortTag() == "!!null":
			l.problems.Add(key, "INVALID", "line %d: has no value: leave it out for its default", line)
		default:
			l.set(key, fmt.Sprintf("line %d", line), value)
		}
		seen[key] = true
	}
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
		for key := range l.settings {
			if envPrefix+strings.ToUpper(strings.ReplaceAll(key, ".", "_")) == name {
				known = true
				l.setText(key, name, text)
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

// secretFiles reads the secrets whose settings name a file. It removes white space around a secret.
func (l *loader) secretFiles() {
	for _, key := range []string{"redis.url", "storage.url", "egress.proxy_url", "smtp.password", "console.login.client_secret"} {
		file, s := l.settings[key+"_file"].String(), l.settings[key]
		if file == "" {
			continue
		}
		text, err := os.ReadFile(file)
		text = bytes.TrimSpace(text)
		switch {
		case s.String() != s.tag.Get("default"):
			l.problems.Add(key+"_file", "CONFLICT", "%s is set too: set only one of them", key)
		case err != nil:
			l.problems.Add(key+"_file", "INVALID", "%v", err)
		case len(text) == 0:
			l.problems.Add(key+"_file", "INVALID", "%s is empty", file)
		default:
			s.SetString(string(text))
		}
	}
}

func (l *loader) overrides(overrides map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(overrides)) {
		if _, known := l.settings[key]; !known {
			l.problems.Add(key, "UNKNOWN_KEY", "there is no such setting")
		} else if overrides[key] != "" {
			l.setText(key, "flag", overrides[key])
		}
	}
}

// set sets a setting. A value of the wrong type is a problem and changes nothing.
func (l *loader) set(key, source string, n *yaml.Node) {
	s := l.settings[key]
	value, err := parse(n, s.Type())
	if err == nil {
		s.Set(value)
		return
	}
	t, list := s.Type(), ""
	if t.Kind() == reflect.Slice {
		t, list = t.Elem(), "a list, each "
	}
	l.problems.Add(key, "INVALID", "%s: want %s%s", source, list, cmp.Or(wanted[t], "text"))
}

// wanted describes the valid values of a type.
var wanted = map[reflect.Type]string{
	durationType:                      "a duration with its unit, as in 1h30m or 7d",
	reflect.TypeFor[netip.Prefix]():   "an address range, as in 10.0.0.0/8",
	reflect.TypeFor[uuid.UUID]():      "a UUID",
	reflect.TypeFor[bool]():           "true or false",
	reflect.TypeFor[int]():            "a whole number",
	reflect.TypeFor[float64]():        "a number",
	reflect.TypeFor[trustedIssuer]():  "keys with values",
	reflect.TypeFor[loginRole]():      "group and role, and if wanted company, as in {group: hooks-ops, role: operator}",
	reflect.TypeFor[companyHistory](): "company and days, as in {company: 6f1c2a7e-3b0d-4a53-9c1c-0f5b8f0d2a11, days: 90}",
	reflect.TypeFor[egressAddress]():  "cidr, and if wanted valid_from and valid_until, as in {cidr: 203.0.113.7}",
}

// parse reads a value of type t.
func parse(n *yaml.Node, t reflect.Type) (reflect.Value, error) {
	if t == durationType || t.Kind() == reflect.Slice && t.Elem() == durationType {
		toHours(n)
	}
	value := reflect.New(t)
	err := n.Load(value.Interface(), yaml.WithKnownFields())
	return value.Elem(), err
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	daysOrWeeks  = regexp.MustCompile(`([0-9]*\.?[0-9]+)([dw])`)
)

// toHours rewrites days and weeks in durations as hours, for time.ParseDuration.
func toHours(n *yaml.Node) {
	n.Value = daysOrWeeks.ReplaceAllStringFunc(n.Value, func(part string) string {
		hours, _ := strconv.ParseFloat(part[:len(part)-1], 64) // the pattern matches numbers only
		if hours *= 24; strings.HasSuffix(part, "w") {
			hours *= 7
		}
		return strconv.FormatFloat(hours, 'f', -1, 64) + "h"
	})
	for _, item := range n.Content {
		toHours(item)
	}
}

// setText parses text as in a YAML file, except that a list needs no brackets.
func (l *loader) setText(key, source, text string) {
	value := scalar(text)
	if l.settings[key].Kind() == reflect.Slice {
		value = list(text)
	}
	l.set(key, source, value)
}

func scalar(text string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: text} }

// list parses a list. It returns text that is no list as a scalar.
func list(text string) *yaml.Node {
	if !strings.HasPrefix(text, "[") {
		text = "[" + text + "]"
	}
	var document yaml.Node
	if yaml.Load([]byte(text), &document) != nil {
		return scalar(text)
	}
	return document.Content[0]
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

// Adopt copies the setting named key. It panics for an unknown key.
func Adopt(to, from *Config, key string) { settings(to)[key].Set(settings(from)[key].Value) }
