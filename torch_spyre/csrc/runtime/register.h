// What the module has to switch on by hand; all else registers itself when it is loaded.
#pragma once

namespace spyre {

void register_hooks();
void register_serialization();

}  // namespace spyre
