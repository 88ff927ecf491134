// Kubernetes' own allocator of devices, asked through pipes: one case a line of JSON on stdin, one answer a line on stdout.
//
// A case has the API's own objects: what there is (slices, classes, the claims that are allocated already) and what is asked for
// (claims, a node). It is what the scheduler does with them in Filter, without a scheduler.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	core "k8s.io/api/core/v1"
	resource "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

type question struct {
	Slices    []*resource.ResourceSlice
	Classes   []*resource.DeviceClass
	Allocated []*resource.ResourceClaim
	Claims    []*resource.ResourceClaim
	Node      *core.Node
	Features  structured.Features
	// How often to ask, for a measurement: the answer is the last one.
	Times int
}

// An answer has allocations, or an error, or neither: it does not fit.
type answer struct {
	Allocations []resource.AllocationResult `json:"allocations"`
	Error       string                      `json:"error,omitempty"`
	// Of one time, in seconds: of an allocator that is new each time, as it is for each pod, with the compiled expressions kept.
	Seconds float64 `json:"seconds"`
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "--version" {
		fmt.Println(version())
		return
	}
	out := bufio.NewWriter(os.Stdout)
	decoder, encoder := json.NewDecoder(bufio.NewReaderSize(os.Stdin, 1<<20)), json.NewEncoder(out)
	caches := map[structured.Features]*cel.Cache{}
	for decoder.More() {
		asked := question{Times: 1}
		if err := decoder.Decode(&asked); err != nil {
			fmt.Fprintln(os.Stderr, "not a case:", err)
			os.Exit(2)
		}
		if caches[asked.Features] == nil {
			caches[asked.Features] = cel.NewCache(1024, cel.Features{
				EnableConsumableCapacity: asked.Features.ConsumableCapacity,
				EnableListTypeAttributes: asked.Features.ListTypeAttributes,
			})
		}
		said := answer{}
		taken := allocated(asked)
		for range asked.Times {
			begin := time.Now()
			allocations, err := allocate(asked, taken, caches[asked.Features])
			said.Seconds += time.Since(begin).Seconds() / float64(asked.Times)
			said.Allocations, said.Error = allocations, ""
			if err != nil {
				said.Error = err.Error()
			}
		}
		if err := encoder.Encode(said); err != nil {
			panic(err)
		}
		out.Flush()
	}
}

func allocate(asked question, taken structured.AllocatedState, cache *cel.Cache) (_ []resource.AllocationResult, err error) {
	defer func() { // of objects that no API server would have
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v", cause)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // as the scheduler's filter has
	defer cancel()
	allocator, err := structured.NewAllocator(ctx, asked.Features, taken, classes(asked.Classes), asked.Slices, cache)
	if err != nil {
		return nil, err
	}
	return allocator.Allocate(ctx, asked.Node, asked.Claims)
}

// What the claims hold, told apart as the scheduler does: alone, shared, or looking only.
func allocated(asked question) structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, claim := range asked.Allocated {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			id := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
			switch {
			case result.AdminAccess != nil && *result.AdminAccess:
			case result.ShareID != nil && asked.Features.ConsumableCapacity:
				state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, result.ShareID))
				if result.ConsumedCapacity != nil {
					state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, result.ConsumedCapacity))
				}
			default:
				state.AllocatedDevices.Insert(id)
			}
		}
	}
	return state
}

type classes []*resource.DeviceClass

func (c classes) List() ([]*resource.DeviceClass, error) { return c, nil }

func (c classes) Get(name string) (*resource.DeviceClass, error) {
	for _, class := range c {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, fmt.Errorf("there is no device class %s", name)
}

func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "k8s.io/dynamic-resource-allocation" {
			return module.Version
		}
	}
	return "unknown"
}
