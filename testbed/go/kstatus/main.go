// What Flux and Helm make of objects: whether they are there, have failed, or are still on their way.
//
// On stdin is a JSON object with `objects`, a list of them as an API server has them, and `flux`, the Kustomizations and sources that somebody
// has written for Flux: a field that Flux does not know is an error. On stdout is a JSON list of what each object comes to: by the library kstatus
// of kubernetes-sigs/cli-utils, by Flux's own branch of it, which Flux and Helm are built with, and by Flux's evaluator of the health check
// expressions, where a Kustomization has some for its kind.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"

	fluxstatus "github.com/fluxcd/cli-utils/pkg/kstatus/status"
	kustomize "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/runtime/cel"
	source "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

type question struct {
	Objects []*unstructured.Unstructured `json:"objects"`
	Flux    []json.RawMessage            `json:"flux"`
}

type verdict struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

type verdicts struct {
	Kstatus verdict `json:"kstatus"`
	Flux    verdict `json:"flux"`
	// An expression that cannot be evaluated is an error to Flux, which asks again until its time is over.
	Exprs string `json:"exprs,omitempty"`
	Error string `json:"error,omitempty"`
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "--version" {
		fmt.Println(version())
		return
	}
	said, err := judge()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(said); err != nil {
		panic(err)
	}
}

func judge() ([]verdicts, error) {
	var asked question
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		return nil, fmt.Errorf("no objects on stdin: %w", err)
	}
	evaluators, err := read(asked.Flux)
	if err != nil {
		return nil, err
	}
	said := []verdicts{}
	for _, object := range asked.Objects {
		upstream, err := status.Compute(object)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
		}
		flux, err := fluxstatus.Compute(object)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
		}
		one := verdicts{
			Kstatus: verdict{upstream.Status.String(), upstream.Message},
			Flux:    verdict{flux.Status.String(), flux.Message},
		}
		if evaluator := evaluators[object.GroupVersionKind().GroupKind()]; evaluator != nil {
			if result, err := evaluator.Evaluate(context.Background(), object); err != nil {
				one.Error = err.Error()
			} else {
				one.Exprs = result.Status.String()
			}
		}
		said = append(said, one)
	}
	return said, nil
}

// The evaluators of what Kustomizations say, by the kind that they are for.
func read(written []json.RawMessage) (map[schema.GroupKind]*cel.StatusEvaluator, error) {
	found := map[schema.GroupKind]*cel.StatusEvaluator{}
	for _, each := range written {
		var kind metav1.TypeMeta
		if err := json.Unmarshal(each, &kind); err != nil {
			return nil, err
		}
		var kustomization kustomize.Kustomization
		into, known := map[string]any{
			kustomize.GroupVersion.String() + "/Kustomization": &kustomization,
			source.GroupVersion.String() + "/GitRepository":    &source.GitRepository{},
		}[kind.APIVersion+"/"+kind.Kind]
		if !known {
			return nil, fmt.Errorf("%s of %s is nothing that is known here", kind.Kind, kind.APIVersion)
		}
		strict := json.NewDecoder(bytes.NewReader(each))
		strict.DisallowUnknownFields()
		if err := strict.Decode(into); err != nil {
			return nil, fmt.Errorf("%s: %w", kind.Kind, err)
		}
		for _, check := range kustomization.Spec.HealthCheckExprs {
			evaluator, err := cel.NewStatusEvaluator(&check.HealthCheckExpressions)
			if err != nil {
				return nil, err
			}
			found[schema.FromAPIVersionAndKind(check.APIVersion, check.Kind).GroupKind()] = evaluator
		}
	}
	return found, nil
}

// The version that was built is that of the library.
func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "sigs.k8s.io/cli-utils" {
			return module.Version
		}
	}
	return "unknown"
}
