// Validation of UTF-8, as strict as Python's decoder.
#pragma once

#include <string_view>

namespace sdx {

// False for overlong forms, surrogates, code points above U+10FFFF and stray bytes.
bool is_utf8(std::string_view text);

}  // namespace sdx
