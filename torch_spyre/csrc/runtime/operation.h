// Runs an operation on the card: signature, plan, outputs, launch.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <map>
#include <string>
#include <vector>

namespace c10 {
class OperatorHandle;
}

namespace spyre {

// An operation of ours that has no schema: all arguments are tensors on one card, the first is
// written. ("spyre::copy": to, from.)
void run_operation(const std::string& name, const std::vector<at::Tensor>& arguments);

// The boxed kernel behind every aten operation that the planner knows.
void operation_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Registers it for "add.Tensor" and the like. With each name of the pointwise table come the
// arguments whose values (not only their types) shape the program; of a traced operation all do.
void register_operations(const std::map<std::string, std::vector<int64_t>>& table,
                         const std::vector<std::string>& traced);

}  // namespace spyre
