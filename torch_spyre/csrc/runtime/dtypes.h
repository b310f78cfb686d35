// How PyTorch's dtypes are held: on the card, and on the host side of a DMA transfer.
#pragma once

#include <c10/core/ScalarType.h>

#include "card/formats.h"

namespace spyre {

// The card's format for a dtype. Throws c10::TypeError naming the dtype if the card has none.
DataFormat device_format(c10::ScalarType dtype);
bool has_device_format(c10::ScalarType dtype) noexcept;

HostFormat host_format(c10::ScalarType dtype);  // throws as above

// Warns once per process that int64 is held in 32 bits, unless switched off.
void warn_about_downcast(c10::ScalarType dtype);
bool downcast_warning();
void set_downcast_warning(bool on);

}  // namespace spyre
