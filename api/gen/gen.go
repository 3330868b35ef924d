// Package gen holds the types and the server interface generated from
// api/openapi.yaml, which is the source of both. The files in templates let a handler take
// its parameters and its decoded body, and return its answer. Do not edit openapi.gen.go.
package gen

//go:generate go tool -modfile=../../tools.mod oapi-codegen -config config.yaml -o openapi.gen.go ../openapi.yaml
