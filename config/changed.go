package config

import (
	"reflect"
	"slices"
)

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
