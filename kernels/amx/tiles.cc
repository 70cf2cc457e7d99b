#include "kernels/amx/tiles.h"

#include "kernels/amx/amx_ops.h"

namespace fastdecode::kernels {

// Setting the tiles up costs as much as a quarter of a tile's work, hence once a call.
void EnterAmx(int32_t vectors) {
  if (vectors < kMinDirectVectors) return;
  struct alignas(64) {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  } config;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = kRowBytes;
    config.rows[i] = static_cast<uint8_t>(i < 6 ? VectorsOfPass(vectors) : kTileRows);
  }
  StoresBefore();
  _tile_loadconfig(&config);
}

void LeaveAmx(int32_t vectors) {
  if (vectors >= kMinDirectVectors) _tile_release();
}

}  // namespace fastdecode::kernels
