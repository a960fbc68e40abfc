/* What Rust calls of dmadev, the engines of DPDK that copy memory. A device has one channel here.
 *
 * What can fail gives 0 or more, or a negative errno. */

#ifndef TRUNKLINE_DPDK_DMA_H
#define TRUNKLINE_DPDK_DMA_H

#include <stdint.h>

/* Most copies that a device has at once, which is also the most of a poll. */
#define TRUNKLINE_DMA_DEPTH 255

/* What there is to know of a device. */
struct trunkline_dma_info {
	/* Most copies that it takes before they are polled. */
	uint16_t depth;
	/* Whether it takes the addresses of this process as they are. */
	uint8_t takes_any_address;
	/* Whether it copies from memory to memory. */
	uint8_t copies;
	/* Whether it tells of copies that failed. */
	uint8_t tells_errors;
};

int trunkline_dma_add(const char *devargs);
int trunkline_dma_find(const char *name);
int trunkline_dma_info(int16_t device, struct trunkline_dma_info *info);
int trunkline_dma_start(int16_t device);
int trunkline_dma_close(int16_t device, const char *added);

int trunkline_dma_copy(int16_t device, const void *from, void *to, uint32_t length);
int trunkline_dma_kick(int16_t device);
uint16_t trunkline_dma_poll(int16_t device, uint8_t *failed);

#endif
